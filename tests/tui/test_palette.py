"""The command palette lets go of the screen once, however often it is told to."""

from __future__ import annotations

from rich.style import Style
from textual.command import CommandList, CommandPalette
from textual.events import Click


async def test_a_palette_that_is_closed_twice_at_once_leaves_the_screen_below(running):
    async with running() as screen:
        await screen.press("ctrl+p")
        palette = screen.app.screen
        assert isinstance(palette, CommandPalette)
        palette.dismiss()
        palette.dismiss()
        await screen.pilot.pause()
        assert len(screen.app.screen_stack) == 1
        await screen.press("2")
        assert screen.app.focus_now.panel == "batch"


async def test_a_palette_can_be_opened_while_the_last_one_still_leaves(running):
    async with running() as screen:
        await screen.press("ctrl+p")
        screen.app.screen.dismiss()
        screen.app.action_command_palette()
        await screen.pilot.pause()
        assert len(screen.app.screen_stack) == 2
        screen.app.screen.dismiss()
        await screen.pilot.pause()
        assert len(screen.app.screen_stack) == 1


async def test_a_click_on_a_command_that_is_gone_from_the_list_is_nothing(running):
    async with running() as screen:
        await screen.press("ctrl+p")
        await screen.pilot.pause()
        found = screen.app.screen.query_one(CommandList)
        click = Click(found, 0, 0, 0, 0, 1, False, False, False, style=Style.from_meta({"option": 500}))
        found.post_message(click)
        await screen.pilot.pause()
        assert screen.app.is_running
