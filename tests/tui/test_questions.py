"""What the last line asks, what is cancelled, the command palette: and that no key reaches what is behind them."""

from __future__ import annotations

import asyncio

import pytest

from tui.keys import GLOBAL
from tui.themes import THEMES


async def selected(screen):
    """The table of requests in front, with a request selected that is not held."""
    await screen.press("5", "home")
    return screen.app.focus_now.request


@pytest.mark.parametrize(("text", "cancelled"), [("y", True), ("YES", True), ("n", False), ("", False), ("yn", False)])
async def test_a_request_is_cancelled_only_after_a_yes(running, text, cancelled):
    async with running() as screen:
        request = await selected(screen)
        await screen.press("x")
        assert f"cancel {request}? y or n:" in screen.painted()[-1]
        screen.app.screen.focused.value = text
        await screen.press("enter")
        assert screen.engine.cancelled == [request] * cancelled
        assert (f"cancelled {request}" in screen.text("footer")) == cancelled
        assert screen.app._question.asked is None


@pytest.mark.parametrize(("key", "cancelled"), [("y", True), ("n", False), ("j", False)])
async def test_one_key_answers(running, key, cancelled):
    async with running() as screen:
        request = await selected(screen)
        await screen.press("x", key)
        assert screen.engine.cancelled == [request] * cancelled
        assert ("nothing was cancelled" in screen.text("footer")) != cancelled
        assert screen.app._question.asked is None


async def test_escape_takes_a_question_back(running):
    async with running() as screen:
        await selected(screen)
        before = screen.painted()
        for key in ("x", "g", "slash", "r", "b"):
            await screen.press(key, *(() if key == "x" else "y"), "escape")
            assert screen.app._question.asked is None
            assert screen.app.focus_now.panel in ("requests", "control")
        assert screen.engine.cancelled == []
        assert screen.engine.changes == []
        await screen.press("5")
        assert screen.painted() == before


async def test_a_refusal_to_cancel_is_told(running):
    async with running() as screen:
        await selected(screen)
        screen.engine.refusal = "HTTP 404: no such request"
        await screen.press("x", "y", "enter")
        assert "HTTP 404: no such request" in screen.text("footer")


async def test_keys_go_to_the_question_and_not_to_the_screen_behind(running):
    async with running((160, 48)) as screen:
        await screen.press("g")
        behind = {name: screen.text(name) for name in ("header", "blocks", "batch", "waste", "speed")}
        await screen.press(*"maTqe16?", "space", "tab", "comma", "down", "up", "left", "f1", "ctrl+p")
        assert {name: screen.text(name) for name in behind} == behind
        assert screen.engine.changes == []
        assert screen.app.screen.focused.value.startswith("maTqe16?")
        assert len(screen.app.screen_stack) == 1
        await screen.press("escape")
        assert screen.app.screen.focused is None
        await screen.press("e")
        assert screen.app.focus_now.expanded


async def test_a_question_moves_with_the_last_line(running):
    async with running() as screen:
        await screen.press("g", *"17")
        await screen.pilot.resize_terminal(100, 30)
        await screen.pilot.pause()
        assert screen.painted()[-1].startswith(" to step: 17")


async def test_the_theme_paints_a_question_too(running):
    async with running() as screen:
        await screen.press("g", *"17")
        line = screen.strips()[-1]
        assert {str(segment.style.bgcolor.name) for segment in line if segment.style} != set()


async def typed(screen, words):
    """What is written into the palette, once it has found something."""
    await screen.pilot.press("ctrl+p")
    for letter in words:
        await screen.pilot.press("space" if letter == " " else letter)
    for _ in range(100):
        await screen.pilot.pause()
        if words in "\n".join(screen.painted()[4:]):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("\n".join(screen.painted()))


async def test_the_palette_runs_a_command_and_closes(running):
    async with running((100, 30)) as screen:
        await typed(screen, "theme light")
        await screen.pilot.press("down", "enter")
        await screen.settle()
        assert len(screen.app.screen_stack) == 1
        assert screen.app.look.theme.name == "light"
        await typed(screen, "large, and back")
        await screen.pilot.press("down", "enter")
        await screen.settle()
        assert screen.app.focus_now.expanded


async def test_keys_in_the_palette_do_not_act_behind_it(running):
    async with running((100, 30)) as screen:
        focus = screen.app.focus_now
        await screen.pilot.press("ctrl+p", "m", "a", "e", "2", "T", "tab")
        await screen.pilot.press("escape")
        await screen.settle()
        assert len(screen.app.screen_stack) == 1
        assert screen.app.focus_now == focus
        assert screen.engine.changes == []


@pytest.mark.parametrize("readonly", [False, True])
async def test_the_palette_lists_every_key_and_theme_that_may_be_used(running, readonly):
    async with running(readonly=readonly) as screen:
        titles = [command.title for command in screen.app.get_system_commands(screen.app.screen)]
        for key in GLOBAL:
            wanted = key.action != "command_palette" and "steps" in key.on and not key.replays
            wanted = wanted and not (key.sends and readonly)
            assert (f"{key.does} ({key.shown})" in titles) == wanted
        assert [f"theme {name}" for name in THEMES] == titles[-len(THEMES) :]
