"""Every key and the mouse on the screens of a fleet and of one of its servers, pressed in the running app."""

from __future__ import annotations

import asyncio
from itertools import takewhile

import pytest

from tests.servers.pages import EngineFigures
from tests.tui.key_cases import EVERYWHERE, KeyCases, leaves_one_by_one
from tests.tui.sources.fleets import BEGIN, NAMES, SECONDS, Clock, fill, hear, still
from tui.focus import PANELS
from tui.keys import GLOBAL, SCRUB
from tui.look import ASCII, Look
from tui.panels import fleet
from tui.sources.items import SourceHead
from tui.sources.recording import read_items

SIZE = (160, 48)
FLEET = {name: key for key in GLOBAL if "fleet" in key.on for name in key.keys.split(",")}
SERVER = {name: key for key in GLOBAL if "server" in key.on for name in key.keys.split(",")}
CASES, SERVER_CASES = KeyCases(EVERYWHERE), KeyCases(EVERYWHERE)
case, server_case = CASES.of, SERVER_CASES.of


@pytest.fixture
def watching(showing):
    """The app over a fleet that is heard of when a test says so."""

    def show(size=SIZE, look=None, names=NAMES, **options):
        clock = Clock()
        attach = still(clock, names)

        async def ready():
            fill(attach.sources, clock)

        return showing(attach, None, clock, ready, size, look, **options)

    return show


def selected(screen):
    """The name that the cursor is at, as the screen has it."""
    lines = [line for line in screen.text("fleet").splitlines() if line.startswith(("│▸", "|>"))]
    assert len(lines) == 1
    return lines[0][2:].split()[0]


def names(screen):
    """The servers in the order of their rows."""
    words = [line[2:].split() for line in screen.text("fleet").splitlines()[2:]]
    rows = takewhile(lambda words: len(words) > 8, words)
    return [next(name for name in NAMES if name[:4] == row[0][:4]) for row in rows]


@case("question_mark", "h", "f1")
async def helps(screen, key):
    await screen.press(key)
    painted = "\n".join(screen.painted())
    assert "in the fleet" in painted
    assert "show only some servers" in painted
    for other in ("batching", "the map", "block map", "the engine", "step by its number", "play half as fast", "tab"):
        assert other not in screen.text("help")
    await screen.press(key)
    assert not screen.widget("help").display


@case("space", "p")
@server_case("space", "p")
async def freezes(screen, key):
    await screen.press(key)
    assert "paused" in screen.text("header")
    before = screen.text("blocks" if screen.app.shown.kind == "server" else "fleet")
    screen.clock.time += 10
    for source in screen.app.attached.sources[:3]:
        hear(source, "vllm" if source.number != 1 else "sglang", EngineFigures(running=99), screen.clock.time)
    screen.app.draw_frame()
    assert screen.text("blocks" if screen.app.shown.kind == "server" else "fleet") == before
    await screen.press(key)
    assert "paused" not in screen.text("header")
    if screen.app.shown.kind == "fleet":
        assert " 99 " in screen.text("fleet")


@case("i")
async def inspects(screen, key):
    await screen.press("down", "down", "down", key)
    text = screen.text("inspect")
    assert "delta" in text
    assert "nothing answers there" in text
    assert "these figures are of then, and in no total" in text
    await screen.press(key)
    assert not screen.widget("inspect").display


@case("escape")
async def leaves_one_thing_at_a_time(screen, key):
    await leaves_one_by_one(screen, key, "vllm", lambda: names(screen) == ["alpha", "delta"])
    assert len(names(screen)) == len(NAMES)


@case("slash")
async def filters(screen, key):
    await screen.press(key)
    assert screen.asked.label == "filter"
    await screen.answer("model-7b")
    assert names(screen) == ["alpha", "beta"]
    assert "of all 2 that tell now" in screen.text("fleet")
    await screen.press(key)
    await screen.answer("nobody")
    assert 'no server has "nobody"' in screen.text("fleet")
    await screen.press("enter")
    assert "select a server first" in screen.text("footer")
    await screen.press(key)
    await screen.answer("")
    assert len(names(screen)) == len(NAMES)


@case("ctrl+p")
@server_case("ctrl+p")
async def opens_the_palette(screen, key):
    offers = [command.title for command in screen.app.get_system_commands(screen.app.screen)]
    assert not any("batching" in offer or "replay" in offer or "half as fast" in offer for offer in offers)
    assert any("freeze" in offer for offer in offers)
    opens = [f"open {name}" for name in NAMES] if screen.app.shown.kind == "fleet" else []
    assert [offer for offer in offers if offer.startswith("open ")] == opens
    await screen.press(key)
    assert len(screen.app.screen_stack) == 2
    await screen.press("escape")
    assert len(screen.app.screen_stack) == 1


@case("comma")
@server_case("comma")
async def goes_back_a_look(screen, key):
    await screen.press(key)
    assert screen.app.scrub.past.behind >= 10
    assert "paused, " in screen.text("header")


@case("full_stop")
@server_case("full_stop")
async def goes_on_a_look(screen, key):
    await screen.press("comma")
    behind = screen.app.scrub.past.behind
    await screen.press(key)
    assert screen.app.scrub.past.behind < behind
    assert "paused, " in screen.text("header")


@case("n")
@server_case("n")
async def has_no_event_after_now(screen, key):
    await screen.press(key)
    assert "no event is known after this" in screen.text("footer")


@case("N")
@server_case("N")
async def goes_to_the_event_before(screen, key):
    await screen.press(key)
    assert "paused" in screen.text("header")
    assert any(name in screen.text("footer") for name in (*NAMES, "restart", "answer", "known"))


@case("g")
@server_case("g")
async def goes_to_a_look(screen, key):
    await screen.press(key)
    assert screen.asked.label == "to look"
    await screen.answer("1")
    assert f"paused, {SECONDS} s ago" in screen.text("header")
    await screen.press(key)
    await screen.answer("soon")
    assert "a look is a whole number, not 'soon'" in screen.text("footer")


@case("r")
@server_case("r")
async def records_all_of_them(screen, key, folder):
    await screen.press(key)
    assert screen.asked.value.endswith(".jsonl.gz")
    await screen.answer(str(folder / "kept.jsonl"))
    assert "r ends it" in screen.text("footer")
    screen.app.say("")
    screen.clock.time += 1
    hear(screen.app.attached.sources[0], "vllm", EngineFigures(running=5), screen.clock.time)
    await screen.press(key)
    assert "recorded " in screen.text("footer")
    items = list(read_items(folder / "kept.jsonl"))
    assert [item.name for item in items if isinstance(item, SourceHead)][: len(NAMES)] == list(NAMES)
    await screen.press(key)
    await screen.answer(str(folder / "kept.jsonl"))
    assert "exists already" in screen.text("footer")


# Of one server alone:


@server_case("question_mark", "h", "f1")
async def helps_over_a_server(screen, key):
    await screen.press(key)
    assert "in KV memory" in screen.text("help")
    assert "back to the fleet" in screen.text("help")
    assert "batching" not in screen.text("help")
    assert "show only some" not in screen.text("help")


@server_case("1", "2", "3", "4", "5", "6")
async def comes_to_the_front(screen, key):
    await screen.press("1" if key == "6" else "6", key)
    assert screen.app.focus_now.panel == PANELS[int(key) - 1]
    await screen.press(key)
    assert screen.widget(PANELS[int(key) - 1]).size.width == SIZE[0]


@server_case("tab", "shift+tab")
async def goes_round(screen, key):
    seen = []
    for _ in PANELS:
        seen.append(screen.app.frame().focus.panel)
        await screen.press(key)
    assert set(seen) == set(PANELS)


@server_case("e")
async def makes_large(screen, key):
    await screen.press(key)
    assert screen.widget("blocks").size.width == SIZE[0]
    assert not screen.widget("batch").display


@server_case("i")
async def inspects_in_a_panel(screen, key):
    await screen.press("6", key)
    assert screen.widget("inspect").display
    assert screen.text("inspect").splitlines()[1] in "\n".join(screen.painted())


@server_case("escape")
async def leads_back_to_the_fleet(screen, key):
    await screen.press("e", "space", key)
    assert screen.widget("batch").display
    await screen.press(key)
    assert "paused" not in screen.text("header")
    assert " esc the fleet " in screen.text("footer")
    await screen.press(key)
    assert screen.widget("fleet").display
    assert not screen.widget("blocks").display
    assert selected(screen) == "beta"


def test_every_key_has_a_case():
    assert set(CASES) == set(FLEET)
    assert set(SERVER_CASES) == set(SERVER)


@pytest.mark.parametrize("name", FLEET)
async def test_what_a_key_does_in_a_fleet(watching, tmp_path, name):
    async with watching() as screen:
        await (CASES[name](screen, name, tmp_path) if name == "r" else CASES[name](screen, name))


@pytest.mark.parametrize("name", SERVER)
async def test_what_a_key_does_over_one_server(watching, tmp_path, name):
    async with watching() as screen:
        await screen.press("down", "enter")
        assert screen.app.shown.kind == "server"
        check = SERVER_CASES[name]
        await (check(screen, name, tmp_path) if name == "r" else check(screen, name))


# The keys of the table


def test_every_key_of_the_table_is_pressed_here():
    shown = {word for key in fleet.KEYS for word in key.keys.split()}
    assert shown == {"enter", "up", "down", "<", ">", "I", "+", "-", "home", "end"}
    taken = {word for key in FLEET.values() for word in key.shown.split()}
    assert not shown & taken


async def test_the_cursor_goes_up_and_down_and_stops_at_the_ends(watching):
    async with watching() as screen:
        assert selected(screen) == "alpha"
        for keys, name in (
            (("down",), "beta"), (("end",), "a-server"), (("down",), "a-server"), (("up",), "delta"),
            (("home",), "alpha"), (("up",), "alpha"), (("pagedown",), "a-server"), (("pageup",), "alpha"),
        ):  # fmt: skip
            await screen.press(*keys)
            assert selected(screen).startswith(name)


async def test_columns_sort_and_the_order_turns_round(watching):
    async with watching() as screen:
        await screen.press("greater_than_sign", "greater_than_sign", "greater_than_sign")
        assert screen.app.focus_now.fleet.sort == "kind"
        assert names(screen)[0] == "beta"  # SGLang
        await screen.press("greater_than_sign", "greater_than_sign")
        assert screen.app.focus_now.fleet.sort == "running"
        assert names(screen)[:3] == ["alpha", "beta", "gamma"]
        await screen.press("I")
        assert names(screen)[:3] == ["gamma", "beta", "alpha"]
        assert "by running, rising" in screen.text("fleet")
        await screen.press(*["less_than_sign"] * 5)
        assert screen.app.focus_now.fleet.sort == "as named"


async def test_the_time_that_figures_are_of_is_chosen(watching):
    async with watching() as screen:
        for key, said in (("plus", "5 min"), ("plus", "15 min"), ("plus", "15 min"), ("minus", "5 min")):
            await screen.press(key)
            assert f"of the last {said}" in screen.text("fleet")
        await screen.press("minus", "minus", "minus")
        assert "of the last 15 s" in screen.text("fleet")


async def test_enter_shows_one_server_and_the_table_is_as_it_was_left(watching):
    async with watching() as screen:
        await screen.press("greater_than_sign", "end", "enter")
        assert screen.app.shown.kind == "server"
        await screen.press("escape")
        assert screen.app.focus_now.fleet.sort == "name"
        await screen.press("home", "enter")
        assert "a-server" in screen.text("header")


async def test_a_picture_of_the_past_stays_one_when_a_server_is_opened(watching):
    async with watching() as screen:
        await screen.press("comma", "enter")
        assert screen.app.shown.kind == "server"
        assert "paused" in screen.text("header")
        await screen.press("escape", "escape")
        assert screen.app.shown.kind == "fleet"


async def test_arrows_are_the_line_of_time_s_only_while_it_is_shown(watching):
    async with watching() as screen:
        await screen.press(*SCRUB)
        assert "paused" not in screen.text("header")
        await screen.press("space")
        assert screen.app.scrub.past.behind == 0
        await screen.press("left")
        assert screen.app.scrub.past.behind > 0
        await screen.press("down")
        assert selected(screen) == "beta"


async def test_the_mouse_sorts_selects_opens_and_presses_keys(watching):
    async with watching() as screen:
        await screen.pilot.click("#fleet", offset=(5, 3))
        await screen.settle()
        assert selected(screen) == "beta"
        head = screen.text("fleet").splitlines()[1]
        await screen.pilot.click("#fleet", offset=(head.index("run") + 1, 1))
        await screen.settle()
        assert "by running, falling" in screen.text("fleet")
        await screen.pilot.click("#fleet", offset=(head.index("run") + 1, 1))
        await screen.settle()
        assert "by running, rising" in screen.text("fleet")
        at = next(y for y, line in enumerate(screen.text("fleet").splitlines()) if line.startswith("│▸"))
        await screen.pilot.click("#fleet", offset=(5, at))
        await screen.settle()
        assert screen.app.shown.kind == "server"
        await screen.pilot.click("#footer", offset=(screen.text("footer").index("esc") + 1, 0))
        await screen.settle()
        assert screen.app.shown.kind == "fleet"
        await screen.pilot.click("#footer", offset=(screen.text("footer").index("? help"), 0))
        await screen.settle()
        assert screen.widget("help").display


async def test_the_wheel_scrolls_a_table_that_is_too_long(watching):
    many = tuple(f"server-{at:02}" for at in range(40))
    async with watching((80, 24), names=many) as screen:
        screen.app.post_message(_wheel(screen, down=True))
        await screen.settle()
        assert "server-03" in screen.text("fleet").splitlines()[2]
        screen.app.post_message(_wheel(screen, down=False))
        await screen.settle()
        assert "server-00" in screen.text("fleet").splitlines()[2]


def _wheel(screen, down):
    widget = screen.widget("fleet")
    return widget.Pointed(widget._place, "down" if down else "up", 5, 5)


async def test_it_works_in_ascii_and_readonly(watching):
    async with watching(look=Look(ASCII), readonly=True) as screen:
        assert all(line.isascii() for line in screen.painted())
        await screen.press("down", "enter")
        assert all(line.isascii() for line in screen.painted())
        assert screen.app.shown.kind == "server"


async def test_keys_of_an_engine_do_nothing_to_a_fleet(watching):
    async with watching() as screen:
        before = screen.painted()
        for key in GLOBAL:
            if "fleet" not in key.on and not any(name in FLEET for name in key.keys.split(",")):
                await screen.press(key.keys.split(",")[0])
        assert screen.painted() == before
        await asyncio.sleep(0)
        assert screen.clock.time == BEGIN + SECONDS
