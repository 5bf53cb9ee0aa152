"""Every key and the mouse on the screen of a cluster, pressed in the running app."""

from __future__ import annotations

import msgspec
import pytest

from engine.cluster.protocol import ClusterControl, decode_cluster
from tests.tui.cluster.clusters import BEGIN, busy, early, many, wounded
from tests.tui.key_cases import EVERYWHERE, KeyCases, leaves_one_by_one
from tui.keys import GLOBAL
from tui.look import ASCII, Look
from tui.panels.cluster import modules, workers

OURS = {
    name: key
    for key in GLOBAL
    if "cluster" in key.on and key.keys not in ("5", "6")  # it has four panels
    for name in key.keys.split(",")
}
CASES = KeyCases(EVERYWHERE)
case = CASES.of


def later(seconds, **told):
    """`busy` so much later, with something else in it."""
    state = busy()
    return msgspec.structs.replace(state, time=state.time + seconds, number=state.number + 1, **told)


def selected(screen):
    """The name that the cursor is at."""
    lines = [line for line in screen.text("workers").splitlines() if "▸●" in line or "▸╳" in line or "▸○" in line]
    assert len(lines) == 1
    at = next(at for at in (lines[0].find(mark) for mark in ("▸●", "▸╳", "▸○")) if at >= 0)
    return lines[0][at + 2 :].split()[0]


@case("question_mark", "h", "f1")
async def helps(screen, key):
    await screen.press(key)
    text = "\n".join(screen.painted())
    assert "in workers by pool" in text
    assert "one worker more in this pool" in text
    assert "dead: its row says why" in text
    for other in ("batching", "block map", "servers tell quantiles"):
        assert other not in screen.text("help")
    await screen.press(key)
    assert not screen.widget("help").display


@case("space", "p")
async def freezes(screen, key):
    await screen.press(key)
    assert "paused" in screen.text("header")
    before = screen.text("workers")
    screen.app.attached.hear(wounded())
    screen.app.draw_frame()
    assert screen.text("workers") == before
    await screen.press(key)
    assert "paused" not in screen.text("header")
    assert "dead: the engine's process" in screen.text("workers")


@case("1", "2", "3", "4")
async def comes_to_the_front(screen, key):
    name = modules.NAMES[int(key) - 1]
    if key != "1":  # which is in front at first
        await screen.press(key)
        assert screen.app.focus_now.panel == name
    await screen.press(key)
    assert screen.widget(name).size.width == 160


@case("tab", "shift+tab")
async def goes_round(screen, key):
    seen = []
    for _ in modules.NAMES:
        seen.append(screen.app.frame().focus.panel)
        await screen.press(key)
    assert sorted(seen) == sorted(modules.NAMES)


@case("e")
async def makes_large(screen, key):
    await screen.press(key)
    assert screen.widget("workers").size.height > 40
    assert not screen.widget("router").display


@case("i")
async def inspects(screen, key):
    await screen.press("right", key)
    text = screen.text("inspect")
    assert "decode-0" in text
    assert "48,000 prompt tokens from others" in text
    await screen.press(key)
    assert not screen.widget("inspect").display


@case("escape")
async def leaves_one_thing_at_a_time(screen, key):
    await leaves_one_by_one(screen, key, "decode", lambda: 'none with "decode"' in screen.text("workers"))


@case("slash")
async def filters(screen, key):
    await screen.press(key)
    assert screen.asked.label == "filter"
    await screen.answer("DECODE-1")
    assert "decode-1" in screen.text("workers")
    assert "decode-0" not in screen.text("workers")
    await screen.press("enter")
    assert "select a worker first" in screen.text("footer")


@case("ctrl+p")
async def opens_the_palette(screen, key):
    offers = [command.title for command in screen.app.get_system_commands(screen.app.screen)]
    assert [offer for offer in offers if offer.startswith("open ")] == [
        "open prefill-0", "open decode-0", "open decode-1",
    ]  # fmt: skip
    assert any("colocated" in offer for offer in offers)
    assert not any("half as fast" in offer for offer in offers)
    await screen.press(key)
    assert len(screen.app.screen_stack) == 2
    await screen.press("escape")


@case("comma")
async def goes_back_a_state(screen, key):
    await screen.press(key)
    assert screen.app.scrub.past.seq == 1
    assert "paused, 5.0 s back" in screen.text("header")
    assert "nothing was handed over yet" in screen.text("transfers")


@case("full_stop")
async def goes_on_a_state(screen, key):
    await screen.press("comma", key)
    assert screen.app.scrub.past.seq == 2
    assert "state 2" in screen.text("scrub")


@case("n", "N")
async def goes_to_an_event(screen, key):
    screen.app.attached.hear(wounded())
    screen.app.attached.hear(msgspec.structs.replace(wounded(), time=BEGIN + 9))
    await screen.press("comma", "comma", "comma") if key == "n" else None
    await screen.press(key)
    told = "prefill and decode: separate, now colocated, routing: prefix, now round robin"
    if key == "N":
        assert screen.app.scrub.past.seq == 3
        assert told in screen.text("footer")
        await screen.press(key, key)
    else:
        assert screen.app.scrub.past.seq == 2
        assert "decode-1 is started again: exit code -9" in screen.text("footer")
        await screen.press(key)
        assert told in screen.text("footer")
        await screen.press(key)
        assert "no event is known after this" in screen.text("footer")


@case("g")
async def goes_to_a_state(screen, key):
    await screen.press(key)
    assert screen.asked.label == "to state"
    await screen.answer("1")
    assert screen.app.scrub.past.seq == 1
    await screen.press(key)
    await screen.answer("soon")
    assert "a state is a whole number, not 'soon'" in screen.text("footer")
    await screen.press(key)
    await screen.answer("99")
    assert "state 99 is not kept: this is the nearest" in screen.text("footer")


@case("r")
async def records(screen, key, folder):
    await screen.press(key)
    await screen.answer(str(folder / "kept.jsonl"))
    assert "r ends it" in screen.text("footer")
    screen.app.attached.hear(wounded())
    await screen.press(key)
    assert "recorded 2 states" in screen.text("footer")
    states = [decode_cluster(line) for line in (folder / "kept.jsonl").read_bytes().splitlines()]
    assert states == [busy(), wounded()]
    await screen.press(key)
    await screen.answer(str(folder / "kept.jsonl"))
    assert "exists already" in screen.text("footer")


@case("m")
async def switches_live_and_back(screen, key):
    await screen.press(key)
    assert screen.engine.told.changes == [{"separate": False}]
    assert "prefill and decode: colocated" in screen.text("footer")
    assert "COLOCATED" in screen.text("header")
    await screen.press(key)
    assert screen.engine.told.changes[-1] == {"separate": True}
    screen.engine.told.refusal = "separate: there is no prefill pool"
    await screen.press(key)
    assert "was not changed: separate: there is no prefill pool" in screen.text("footer")
    assert "SEPARATE" in screen.text("header")


@case("plus", "equals_sign", "minus")
async def scales_the_pool_under_the_cursor(screen, key):
    by = -1 if key == "minus" else 1
    await screen.press(key)
    assert screen.engine.told.changes[-1] == {"prefill": 1 + by}
    await screen.press("right", key)
    assert screen.engine.told.changes[-1] == {"decode": 2 + by}
    await screen.press(key)
    assert screen.engine.told.changes[-1] == {"decode": 2 + 2 * by}
    assert f"decode workers: {2 + 2 * by}" in screen.text("footer")
    if by < 0:
        await screen.press(key)
        assert "decode workers: must be a whole number from 0 to 1,024, got -1" in screen.text("footer")
        assert len(screen.engine.told.changes) == 3
    assert f"2 ready, {2 + 2 * by} wanted" in screen.text("workers")


@case("s")
async def asks_for_a_size(screen, key):
    await screen.press("right", key)
    assert screen.asked.label == "decode workers (0 to 1,024), or as in 'replica 2' of another pool"
    assert screen.asked.value == "2"
    await screen.answer("12")
    await screen.press(key)
    await screen.answer("replicas 3")
    assert screen.engine.told.changes == [{"decode": 12}, {"replicas": 3}]
    assert "REPLICA  0 of 0 ready, 3 wanted" in screen.text("workers")
    await screen.press(key)
    await screen.answer("1025")
    assert "decode workers: must be a whole number from 0 to 1,024, got '1025'" in screen.text("footer")
    await screen.press(key)
    await screen.answer("gpu 1")
    assert "there are prefill, decode, replica workers, not 'gpu'" in screen.text("footer")
    assert len(screen.engine.told.changes) == 2


@case("o")
async def goes_round_the_routings(screen, key):
    await screen.press(key, key, key)
    assert [change["routing"] for change in screen.engine.told.changes] == ["least_loaded", "round_robin", "prefix"]


@case("l")
async def asks_for_local_prefill(screen, key):
    await screen.press("4", key)
    assert screen.asked.value == "64"
    await screen.answer("1,000")
    assert screen.engine.told.changes == [{"local_prefill": 1000}]
    assert "local prefill: 1,000 tokens" in screen.text("footer")


@case("u")
async def takes_back(screen, key):
    await screen.press(key)
    assert "nothing was changed from this screen" in screen.text("footer")
    await screen.press("m", "plus", key, key)
    assert screen.engine.told.changes == [{"separate": False}, {"prefill": 2}, {"prefill": 1}, {"separate": True}]
    await screen.press(key)
    assert "nothing was changed from this screen" in screen.text("footer")


def test_every_key_has_a_case():
    assert set(CASES) == set(OURS)


# One key of each case: others of the same are the same command.
PRESSED = [name for name, check in CASES.items() if name in ("4", "N", "minus") or name == next(
    first for first, other in CASES.items() if other is check)]  # fmt: skip


@pytest.mark.parametrize("name", PRESSED)
async def test_what_a_key_does(watching, tmp_path, name):
    async with watching() as screen:
        await (CASES[name](screen, name, tmp_path) if name == "r" else CASES[name](screen, name))


def test_no_key_of_a_panel_is_one_that_works_everywhere():
    taken = {word for key in OURS.values() for word in key.shown.split()}
    for module in modules.MODULES.values():
        for key in module.KEYS:
            assert not taken & set(key.keys.split()), key


async def test_nothing_is_sent_readonly(watching):
    async with watching(readonly=True) as screen:
        assert " m " not in screen.text("header")
        for key in [name for name, key in OURS.items() if key.sends]:
            screen.app.say("")
            await screen.press(key)
            assert screen.engine.told.changes == []
            assert screen.asked is None
            assert "readonly: nothing is sent" in screen.text("footer")


async def test_the_cursor_goes_through_rows_and_pools(watching):
    async with watching((160, 48), states=(early, busy, wounded)) as screen:
        assert selected(screen) == "prefill-0"
        for keys, name in (
            (("right",), "decode-0"), (("down",), "decode-1"), (("down",), "decode-2"), (("down",), "decode-2"),
            (("home",), "decode-0"), (("end",), "decode-2"), (("left",), "prefill-0"), (("left",), "prefill-0"),
        ):  # fmt: skip
            await screen.press(*keys)
            assert selected(screen) == name


async def test_pools_that_have_no_room_side_by_side_are_reached(watching):
    async with watching((80, 24), states=(early, busy, wounded)) as screen:
        assert "1 pool more: left right" in screen.text("workers")
        assert "REPLICA" not in screen.text("workers")
        await screen.press("right", "right")
        assert "REPLICA" in screen.text("workers")
        assert "PREFILL" not in screen.text("workers")


async def test_columns_sort_and_the_order_turns_round(watching):
    async with watching(states=(many,)) as screen:
        await screen.press("right", "less_than_sign", "less_than_sign")
        sort = screen.app.focus_now.cluster.sort
        assert sort == "load"
        assert "by load, falling" in screen.text("workers")
        await screen.press("left")
        assert "prefill-332" in screen.text("workers")
        await screen.press("I")
        assert "by load," not in screen.text("workers")
        await screen.press("home")
        assert selected(screen) == "prefill-0"


async def test_a_dead_worker_is_told_with_its_reason(watching):
    async with watching(states=(early, busy, wounded)) as screen:
        assert "╳ decode-1" in screen.text("workers")
        assert "dead: the engine's process ended by" in screen.text("workers")
        assert "1 dead" in screen.text("header")
        await screen.press("right", "down", "i")
        assert "the engine's process ended by signal 9" in screen.text("inspect")
        assert "—" in screen.text("inspect")  # it tells no counts


async def test_what_is_told_of_transfers(watching):
    async with watching() as screen:
        text = screen.text("transfers")
        assert "1 offered, 1 waiting, 1 moving, 504 KiB" in text
        row = next(line for line in text.splitlines() if "000316" in line)
        assert row.split()[3:] == ["12", "96", "KiB", "2.0", "ms", "1.1", "ms", "—", "│"]  # so little has no speed
        row = next(line for line in text.splitlines() if "000315" in line)
        assert row.split()[1:] == ["00000315", "prefill-0→decode-0", "75", "4.5", "MiB", "3.0", "ms", "2.3", "ms",
                                   "2,052", "│"]  # fmt: skip
        assert "failed: the process of prefill-0 is no more" in text
        none = next(line for line in text.splitlines() if "000318" in line)
        assert none.split()[3:5] == ["0", "—"]
        assert "315 came to these workers, 29 MiB  2 failed  1 expired" in text
        moving = next(line for line in text.splitlines() if "000319" in line)
        assert " 4.0 ms " in moving
        screen.engine.feed._streams = True
        screen.clock.time += 10  # nothing new is told of it: it is older for all that
        screen.app.draw_frame()
        moving = next(line for line in screen.text("transfers").splitlines() if "000319" in line)
        assert " 10 s " in moving
    async with watching((80, 24)) as screen:
        await screen.press("2", "down", "down")
        assert "in flight" in screen.text("transfers").splitlines()[0]
        assert screen.app.focus_now.cluster.transfers == 0  # all of it is seen


async def test_what_is_overdue_is_told_from_what_is_offered_where_it_is_narrow(watching):
    async with watching((40, 14)) as screen:
        overdue = msgspec.structs.replace(busy().transfers[0], phase="overdue")
        screen.app.attached.hear(msgspec.structs.replace(busy(), transfers=(overdue, busy().transfers[2])))
        screen.app.draw_frame()
        await screen.press("2")
        rows = [line.split() for line in screen.text("transfers").splitlines() if "→" in line]
        assert [row[-4] for row in rows[:2]] == ["!", "O"], screen.text("transfers")


async def test_before_and_after_are_beside_each_other(watching):
    async with watching() as screen:
        text = screen.text("interference")
        assert "▸separate, now" in text
        lines = {" ".join(line.strip("│ ").split()) for line in text.splitlines()}
        assert "decodes alone 4,800 4.0 6.1 9.0" in lines
        assert "with a prefill 1,600 38.0 121 190" in lines
        assert "decodes alone 5,100 4.3 7.1 12.3" in lines  # of two workers: the worst one's quantiles
        assert "with a prefill 25 % → 0.5 %" in lines
        assert "mean step 16 ms → 4.1 ms" in lines
        assert "longest, newest 190 ms → 14 ms" in lines
        assert "decode-1 — — 7.1 14.0" in lines
        screen.app.attached.hear(later(1, control=ClusterControl(separate=False, prefill=1, decode=2)))
        screen.app.draw_frame()
        assert "▸colocated, now" in screen.text("interference")


async def test_rates_are_over_the_last_seconds_and_none_where_a_worker_died_between(watching):
    async with watching() as screen:
        prefill = next(line for line in screen.text("workers").splitlines() if "▸● prefill-0" in line)
        assert " 1,200 " in prefill  # 6,000 tokens in 5 s
        assert " 900 " in prefill  # of decode-0 beside it
        dead = next(line for line in screen.text("workers").splitlines() if "● decode-1" in line)
        assert dead.split()[-7:-5] == ["—", "—"]
        total = next(line for line in screen.text("workers").splitlines() if "  of 2 " in line)
        assert total.split()[-6:-4] == ["28+", "900+"]  # of the one that has a rate
        screen.engine.feed._streams = True
        screen.clock.time += 10  # nothing was told for so long: nothing was computed
        screen.app.draw_frame()
        prefill = next(line for line in screen.text("workers").splitlines() if "▸● prefill-0" in line)
        assert " 1,200 " not in prefill


def anew(worker):
    engine = msgspec.structs.replace(worker.engine, started=99.0)
    return msgspec.structs.replace(worker, engine=engine, restarts=0, seq=9_000, prefill_tokens=90_000)


async def test_a_server_that_was_started_again_meanwhile_has_no_rates_of_its_predecessor(watching):
    def restarted():
        state = busy()
        router = msgspec.structs.replace(state.router, decisions=9_000)
        return msgspec.structs.replace(state, workers=tuple(map(anew, state.workers)), router=router)

    async with watching(states=(early, restarted)) as screen:
        view = screen.engine.cluster.states.newest()
        assert [view.rate(worker, "prefill_tokens") for worker in view.state.workers] == [None] * 3
        assert view.decisions_rate() is None
    async with watching() as screen:
        assert screen.engine.cluster.states.newest().decisions_rate() == 12


async def test_shares_of_requests_are_of_requests_not_of_decisions(watching):
    async with watching() as screen:
        lines = [" ".join(line.split()) for line in screen.text("router").splitlines()]
        assert any("by prefix 310 55 %" in line and "bounded 12 2.1 %" in line for line in lines)
        assert any("local 41 11 %" in line and "handed over 330 89 %" in line for line in lines)


async def test_a_pool_that_was_scaled_to_none_is_there_to_be_scaled_up(watching):
    def without_prefill():
        state = busy()
        return msgspec.structs.replace(state, control=ClusterControl(decode=2), workers=state.workers[1:])

    async with watching() as screen:
        await screen.press("minus")
        screen.engine.hear(without_prefill())
        screen.app.draw_frame()
        assert "▸PREFILL  0 of 0 ready" in screen.text("workers")
        assert "none, and none wanted" in screen.text("workers")
        await screen.press("plus")
        assert screen.engine.told.changes == [{"prefill": 0}, {"prefill": 1}]


async def test_the_mouse_selects_opens_sorts_and_presses_keys(watching):
    async with watching() as screen:
        lines = screen.text("workers").splitlines()
        x = lines[4].index("decode-1") if "decode-1" in lines[4] else lines[3].index("decode-0")
        await screen.pilot.click("#workers", offset=(x + 2, 3))
        await screen.settle()
        assert selected(screen) == "decode-0"
        assert screen.app.focus_now.cluster.pool == "decode"
        await screen.pilot.click("#workers", offset=(lines[2].rindex("run") + 1, 2))
        await screen.settle()
        assert "by running, falling" in screen.text("workers")
        await screen.pilot.click("#header", offset=(screen.text("header").splitlines()[1].index("m "), 1))
        await screen.settle()
        assert screen.engine.told.changes == [{"separate": False}]


async def test_the_wheel_scrolls_all_pools(watching):
    async with watching(states=(many,)) as screen:
        widget = screen.widget("workers")
        screen.app.post_message(widget.Pointed(widget._place, "down", 5, 5))
        await screen.settle()
        assert "● prefill-0 " not in screen.text("workers")
        assert "decode-3 " in screen.text("workers")
        assert "4-" in screen.text("workers")


async def test_only_rows_that_are_seen_are_drawn(watching, monkeypatch):
    drawn = []
    real = workers.bar
    monkeypatch.setattr(workers, "bar", lambda worker, *rest: drawn.append(worker.name) or real(worker, *rest))
    async with watching(states=(many,)) as screen:
        drawn.clear()
        screen.app.draw_frame()
        assert 20 < len(drawn) < 100
        await screen.press("right", "end")
        assert "decode-666" in screen.text("workers")


async def test_it_works_in_ascii(watching):
    async with watching((80, 24), look=Look(ASCII), states=(early, busy, wounded)) as screen:
        for keys in ((), ("i",), ("2", "e"), ("3",), ("4",), ("question_mark",)):
            await screen.press(*keys)
            assert all(line.isascii() for line in screen.painted())
