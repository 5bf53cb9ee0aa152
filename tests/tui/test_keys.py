"""Every key of a step stream's screen that works in all its panels, pressed in the running app."""

from __future__ import annotations

import re

import pytest

from tests.tui.key_cases import EVERYWHERE, KeyCases
from tui import scene
from tui.advice import Suggestion
from tui.focus import PANELS
from tui.keys import GLOBAL, SCRUB

STEPS = tuple(key for key in GLOBAL if "steps" in key.on)
SENDING = {name for key in STEPS if key.sends for name in key.keys.split(",")}
CASES = KeyCases(EVERYWHERE)
case = CASES.of


def changes(screen):
    return screen.engine.changes


def step(screen):
    """The step that the header says it shows."""
    return int(re.search(r"step ([\d,]+)", screen.text("header")).group(1).replace(",", ""))


def front(screen):
    """The panel in front, as the borders tell it: by the role of a title."""
    shown = [place.name for place in screen.app._places if place.name in scene.PANELS and scene.owner(place.name)]
    widgets = {name: screen.widget(name.split("-")[0]) for name in shown}
    return {scene.owner(name) for name in shown if "front" in [role for _, role in widgets[name].line(0)]}


@case("question_mark", "h", "f1")
async def helps(screen, key):
    await screen.press(key)
    assert "in block map" in "\n".join(screen.painted())


@case("space", "p")
async def pauses(screen, key):
    await screen.press(key)
    assert "paused" in screen.text("header")
    assert "0 since" in screen.text("scrub")
    await screen.press(key)
    assert "live" in screen.text("header")
    assert not screen.widget("scrub").display


@case("1", "2", "3", "4", "5", "6")
async def comes_to_the_front(screen, key):
    name = PANELS[int(key) - 1]
    await screen.press("1" if key == "6" else "6", key)
    assert front(screen) == {name}
    before = screen.painted()
    await screen.press(key)
    assert screen.widget(name).size == (160, 45)
    await screen.press(key)
    assert screen.painted() == before


@case("tab")
async def goes_round(screen, key):
    seen = []
    for _ in PANELS:
        seen += front(screen)
        await screen.press(key)
    assert seen == list(PANELS)
    assert front(screen) == {"blocks"}


@case("shift+tab")
async def goes_round_the_other_way(screen, key):
    seen = []
    for _ in PANELS:
        await screen.press(key)
        seen += front(screen)
    assert seen == list(PANELS)[::-1]


@case("e")
async def makes_large(screen, key):
    before = screen.painted()
    await screen.press(key)
    assert screen.widget("blocks").size.width == 160
    assert not screen.widget("batch").display
    await screen.press(key)
    assert screen.painted() == before


@case("i")
async def inspects(screen, key):
    await screen.press("2", "left", key)
    painted = "\n".join(screen.painted())
    assert screen.widget("inspect").display
    assert screen.text("inspect").splitlines()[1] in painted
    await screen.press(key)
    assert not screen.widget("inspect").display


@case("escape")
async def goes_back_one_by_one(screen, key):
    await screen.press("down", "comma", "e", "i", "question_mark")
    for still in ("help", "inspect"):
        assert screen.widget(still).display
        await screen.press(key)
        assert not screen.widget(still).display
    assert not screen.widget("batch").display
    await screen.press(key)
    assert screen.widget("batch").display
    assert screen.app.focus_now.map.block is not None
    await screen.press(key)
    assert screen.app.focus_now.map.block is None
    assert "paused" in screen.text("header")
    await screen.press(key)
    assert "live" in screen.text("header")


@case("slash")
async def filters(screen, key):
    await screen.press(key)
    assert screen.asked.label == "filter"
    assert "filter:" in screen.painted()[-1]
    await screen.answer("state:decode")
    rows = screen.text("requests").splitlines()
    assert 'with "state:decode"' in rows[0]
    decoding = [line for line in rows[2:] if " decode " in line]
    assert decoding
    assert not any(f" {state} " in line for line in rows[2:] for state in ("waiting", "swapped", "prefill"))
    await screen.press(key)
    await screen.answer("nobody at all")
    assert 'no request has "nobody at all"' in screen.text("requests")
    await screen.press(key)
    await screen.answer("")
    assert 'with "' not in screen.text("requests")


@case("left_parenthesis")
async def draws_less_often(screen, key):
    screen.app._frames = 10.0
    for frames in ("5", "2.5", "1.25", "0.625", "0.5", "0.5"):
        await screen.press(key)
        assert f"{frames} frames a second" in screen.text("footer")


@case("right_parenthesis")
async def draws_more_often(screen, key):
    screen.app._frames = 10.0
    for frames in ("20", "40", "60", "60"):
        await screen.press(key)
        assert f"{frames} frames a second" in screen.text("footer")


@case("ctrl+p")
async def opens_the_palette(screen, key):
    await screen.press(key)
    assert len(screen.app.screen_stack) == 2
    await screen.press("escape")
    assert len(screen.app.screen_stack) == 1


@case("comma")
async def goes_one_record_back(screen, key):
    newest = step(screen)
    await screen.press(key, key)
    assert step(screen) == newest - 2
    assert "2 records since" in screen.text("header")


@case("full_stop")
async def goes_one_record_on(screen, key):
    newest = step(screen)
    await screen.press("comma", "comma", "comma", key)
    assert step(screen) == newest - 2
    await screen.press(key, key, key)
    assert step(screen) == newest


@case("n")
async def goes_to_the_next_event(screen, key):
    await screen.press(key)
    assert "no event is known after this" in screen.text("footer")
    await screen.press("N", "N")
    before = step(screen)
    await screen.press(key)
    assert step(screen) > before
    assert f"step {step(screen):,}: " in screen.text("footer")


@case("N")
async def goes_to_the_event_before(screen, key):
    newest = step(screen)
    await screen.press(key)
    assert step(screen) <= newest
    assert f"step {step(screen):,}: " in screen.text("footer")
    for _ in range(200):
        at = step(screen)
        await screen.app.press(key)
        if step(screen) == at:
            break
    assert "no event is known before this" in screen.text("footer")


@case("g")
async def goes_to_a_step(screen, key):
    for text, shown in (("100", 100), ("1,", 1), ("  77 ", 77)):
        await screen.press(key)
        assert screen.asked.label == "to step"
        await screen.answer(text)
        assert step(screen) == shown
    for text, said in (
        ("9,999,999", "step 9,999,999 is not kept: this is the nearest"),
        ("soon", "a step is a whole number, not 'soon'"),
        ("-3", "a step is a whole number, not '-3'"),
        ("", "a step is a whole number, not ''"),
        ("9" * 30, "a step is a whole number, not"),
    ):
        await screen.press(key)
        await screen.answer(text)
        assert said in screen.text("footer")
    assert step(screen) == screen.engine.records[-1].seq


@case("r")
async def records(screen, key, folder):
    await screen.press(key)
    assert screen.asked.what == "record"
    assert screen.asked.value.endswith(".jsonl.gz")
    await screen.answer(str(folder / "kept.jsonl"))
    assert "r ends it" in screen.text("footer")
    await screen.press(key)
    assert "recorded 0 records" in screen.text("footer")
    assert (folder / "kept.jsonl").exists()


@case("m", "a", "f", "c", "s", "w", "k")
async def sends_the_next_choice(screen, key):
    await screen.press(key)
    (change,) = changes(screen)
    (field,) = change
    control = screen.engine.records[-1].control
    assert f"switch('{field}')" in [known.action for known in GLOBAL if known.keys == key]
    assert change[field] != getattr(control, field)
    assert "from step 18,210" in screen.text("footer")


@case("l", "b")
async def asks_for_a_number(screen, key):
    field = {"l": "max_num_seqs", "b": "max_num_batched_tokens"}[key]
    await screen.press(key)
    assert front(screen) == {"control"}
    await screen.answer("1,024" if key == "b" else "7")
    assert changes(screen) == [{field: 1024 if key == "b" else 7}]
    for text in ("0", "many", "-1", "1.5", "1e3", "", "999,999,999,999"):
        await screen.press(key)
        await screen.answer(text)
        assert "must be a whole number from" in screen.text("footer")
    assert len(changes(screen)) == 1


@case("y")
async def tries_advice(screen, key):
    screen.app.steps.advice, screen.app.steps.advised = (), advised(screen)
    await screen.press(key)
    assert changes(screen) == []
    assert "there is no advice now" in screen.text("footer")
    give_advice(screen)
    await screen.press(key)
    assert changes(screen) == [{"max_num_seqs": 5}]
    assert "batch limit is 5 from step 18,210" in screen.text("footer")


@case("u")
async def takes_back(screen, key):
    await screen.press(key)
    assert "nothing was changed from this screen" in screen.text("footer")
    await screen.press("m", key)
    assert changes(screen) == [{"batching": "static"}, {"batching": "continuous"}]
    await screen.press(key)
    assert len(changes(screen)) == 2


@case("R")
async def replays(screen, key):
    asked_for = []

    async def steer(action, speed=1.0):
        asked_for.append((action, speed))
        return "replay started", False

    screen.app.session.steer_replay = steer
    await screen.press(key)
    assert asked_for == [("start", 1.0)]
    assert "replay started" in screen.text("footer")
    screen.app.session.replay = type("Running", (), {"running": True, "line": "replay: running"})()
    await screen.press(key)
    assert asked_for[1:] == [("stop", 1.0)]
    screen.app.session.replay = None


def advised(screen):
    view = screen.app.session.view()
    return int(view.now), view.control


def give_advice(screen):
    screen.app.steps.advice = (Suggestion({"max_num_seqs": 5}, "five are enough", ("5 of 5",), "the same with less"),)
    screen.app.steps.advised = advised(screen)
    screen.app.draw_frame()


NAMES = [(name, key) for key in STEPS for name in key.keys.split(",")]


def test_every_key_has_a_case():
    assert set(CASES) == {name for name, _ in NAMES}


@pytest.mark.parametrize("kind", ["steps", "server", "fleet"])
def test_no_key_does_two_things_on_one_screen(kind):
    names = [name for key in GLOBAL if kind in key.on for name in key.keys.split(",")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", [name for name, _ in NAMES])
async def test_what_a_key_does(running, tmp_path, name):
    async with running((160, 48)) as screen:
        await (CASES[name](screen, name, tmp_path) if name == "r" else CASES[name](screen, name))
        if screen.app.is_running and name not in SENDING:
            assert screen.engine.changes == []


async def test_arrows_are_the_line_of_time_s_only_while_it_is_shown(running):
    async with running((160, 48)) as screen:
        newest = step(screen)
        await screen.press(*SCRUB)
        assert step(screen) == newest
        await screen.press("space", *["comma"] * 12)
        for name in (*SCRUB, *SCRUB, "shift+right", "shift+right"):
            at = step(screen)
            await screen.press(name)
            assert step(screen) == min(newest, at + SCRUB[name])
        assert step(screen) == newest


async def test_readonly_says_so_where_something_would_be_sent(running):
    async with running((160, 48), readonly=True) as screen:
        for name in sorted(SENDING):
            screen.app.say("")
            await screen.press(name)
            assert "readonly: nothing is sent" in screen.text("footer")
        await screen.press("5", "home", "x")
        assert "readonly: nothing is sent" in screen.text("footer")
        assert screen.asked is None
