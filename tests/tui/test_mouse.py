"""The mouse in the running app: on every panel, on the names of keys, on overlays and on the line of time."""

from __future__ import annotations

import pytest
from textual import events

from tui.focus import PANELS, Focus
from tui.keys import GLOBAL
from tui.panels.line import text_of

SIZE = (160, 48)


class Mouse:
    """A mouse over the screen of an app, with places as a person sees them: in cells of the screen, or by words."""

    def __init__(self, screen):
        self.screen = screen

    async def _post(self, event, x, y):
        await self.screen.pilot._post_mouse_events([event], offset=(x, y))
        await self.screen.settle()

    async def click(self, x, y):
        await self.screen.pilot.click(offset=(x, y))
        await self.screen.settle()

    async def wheel(self, x, y, up=False):
        await self._post(events.MouseScrollUp if up else events.MouseScrollDown, x, y)

    async def hover(self, x, y):
        await self.screen.pilot.hover(offset=(x, y))
        await self.screen.settle()

    def cell(self, words, name=None):
        """Where words are: the cell of their first letter, on the screen or in one panel."""
        region = self.screen.widget(name).region if name else None
        for y, line in enumerate(self.screen.painted()):
            if region is None or region.y <= y < region.bottom:
                left, right = (0, len(line)) if region is None else (region.x, region.right)
                at = line[left:right].find(words)
                if at >= 0:
                    return left + at, y
        raise AssertionError(f"{words!r} is not on the screen")

    def inside(self, name, x=3, y=2):
        region = self.screen.widget(name).region
        return region.x + x, region.y + y


@pytest.fixture
def pointing(running):
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def run(size=SIZE, **options):
        async with running(size, **options) as screen:
            yield screen, Mouse(screen)

    return run


def focus(screen):
    return screen.app.focus_now


async def test_a_click_brings_a_panel_to_the_front(pointing):
    async with pointing() as (screen, mouse):
        for name, panel in (("batch", "batch"), ("sharing", "sharing"), ("waste", "ledgers"), ("speed", "ledgers")):
            screen.app.focus_now = Focus()
            screen.app.draw_frame()
            await mouse.click(*mouse.inside(name))
            assert focus(screen).panel == panel
            assert not focus(screen).expanded
        await mouse.click(*mouse.inside("speed"))
        assert screen.widget("ledgers").size.width == SIZE[0]


async def test_the_block_that_is_clicked_is_selected_and_then_told(pointing):
    async with pointing() as (screen, mouse):
        await mouse.click(*mouse.inside("blocks", 21, 3))
        block = focus(screen).map.block
        assert block is not None
        assert f"block {block}" in screen.text("blocks").splitlines()[-1]
        await mouse.click(*mouse.inside("blocks", 21, 3))
        assert f"block {block}" in screen.text("inspect").splitlines()[0]
        assert screen.text("inspect").splitlines()[1] in "\n".join(screen.painted())


async def test_the_wheel_zooms_the_map_and_keeps_the_block_at_the_mouse(pointing):
    async with pointing() as (screen, mouse):
        x, y = mouse.inside("blocks", 21, 4)
        await mouse.wheel(x, y, up=True)
        assert focus(screen).map.zoom == 1
        block = focus(screen).map.block
        before = screen.text("blocks").splitlines()[:-1]
        await mouse.wheel(x, y, up=True)
        assert focus(screen).map.zoom == 2
        await mouse.wheel(x, y)
        assert screen.text("blocks").splitlines()[:-1] == before
        assert abs(focus(screen).map.block - block) <= 1  # a cell of two blocks


async def test_a_step_of_the_batch_is_told_under_the_mouse_and_kept_by_a_click(pointing):
    async with pointing() as (screen, mouse):
        x, y = mouse.inside("batch", 60, 4)
        await mouse.hover(x, y)
        step = focus(screen).batch.step
        assert focus(screen).batch.hovered
        assert f"step {step}" in screen.text("batch")
        await mouse.hover(*mouse.inside("blocks"))
        assert focus(screen).batch.step is None
        await mouse.click(x, y)
        assert focus(screen).batch.step == step
        await mouse.hover(*mouse.inside("batch", 50, 4))
        assert focus(screen).batch.step == step
        await mouse.click(x, y)
        assert focus(screen).batch.step is None


async def test_a_click_in_the_batch_selects_who_has_the_row(pointing):
    async with pointing() as (screen, mouse):
        await mouse.click(*mouse.cell("0003", "batch"))
        assert focus(screen).request == "chatcmpl-0003"
        assert "0003:" in screen.text("blocks").splitlines()[-1]


async def test_rows_of_requests_are_selected_sorted_and_scrolled(pointing):
    async with pointing((160, 24)) as (screen, mouse):
        await screen.press("5")
        rows = screen.text("requests").splitlines()
        await mouse.click(*mouse.inside("requests", 10, 5))
        assert focus(screen).request is not None
        assert focus(screen).request.removeprefix("chatcmpl-") in rows[5]
        await mouse.click(*mouse.cell("blocks", "requests"))
        assert ", by blocks, falling" in screen.text("requests")
        await mouse.click(*mouse.cell("blocks", "requests"))
        await mouse.click(*mouse.inside("requests", 100, 0))
        before = screen.text("requests").splitlines()[2:-1]
        await mouse.wheel(*mouse.inside("requests", 10, 5))
        assert screen.text("requests").splitlines()[2:-4] == before[3:]
        await mouse.wheel(*mouse.inside("requests", 10, 5), up=True)
        assert screen.text("requests").splitlines()[2:-1] == before


async def test_a_click_on_a_control_selects_it_and_on_its_value_changes_it(pointing):
    async with pointing() as (screen, mouse):
        await screen.press("6")
        x, y = mouse.cell("preempt", "control")
        await mouse.click(x, y)
        assert "preempt" in screen.app.frame().view.control.__struct_fields__[focus(screen).control.row :][0:11]
        assert screen.engine.changes == []
        await mouse.click(*mouse.cell("continuous", "control"))
        assert screen.engine.changes == [{"batching": "static"}]
        await mouse.wheel(x, y, up=True)
        await mouse.click(*mouse.cell("512", "control"))
        assert screen.app._question.asked.what == "max_num_batched_tokens"


async def test_nodes_of_the_prefix_tree_are_selected(pointing):
    async with pointing() as (screen, mouse):
        await screen.press("3", "3")
        x, y = mouse.cell("▾", "sharing")
        nodes = set()
        for below in range(3):
            await mouse.click(x + 4, y + below)
            nodes.add(focus(screen).sharing.node)
        assert len(nodes - {None}) == 3


async def test_charts_are_chosen_and_scrolled(pointing):
    async with pointing() as (screen, mouse):
        await screen.press("4", "4")
        x, y = mouse.cell("▸", "ledgers")
        await mouse.click(x + 2, y + 2)
        assert focus(screen).ledgers.chart == 2
        await mouse.wheel(x, y)
        assert focus(screen).ledgers.chart == 3


@pytest.mark.parametrize("size", [(80, 24), SIZE])
async def test_keys_that_are_shown_can_be_clicked(pointing, size):
    async with pointing(size) as (screen, mouse):
        shown = [key for key in GLOBAL if key.brief and f"{key.shown.split()[0]} {key.brief}" in screen.text("footer")]
        assert len(shown) > 5
        for key in shown:
            if key.action == "quit":
                continue
            pressed = []

            async def press(name, pressed=pressed):
                pressed.append(name)

            screen.app.press = press
            await mouse.click(*mouse.cell(f"{key.shown.split()[0]} {key.brief}", "footer"))
            x, y = mouse.cell(f"{key.shown.split()[0]} {key.brief}", "footer")
            await mouse.click(x + len(key.brief), y)
            assert pressed == [key.keys.split(",")[0]] * 2


async def test_keys_in_the_header_and_in_help_can_be_clicked(pointing):
    async with pointing() as (screen, mouse):
        await mouse.click(*mouse.cell("m batching", "header"))
        assert screen.engine.changes == [{"batching": "static"}]
        await mouse.click(*mouse.cell("paged-top", "header"))
        assert focus(screen) == Focus()
        await screen.press("question_mark")
        x, y = mouse.cell("shift+tab", "help")
        await mouse.click(x, y)
        assert focus(screen).panel == "control"
        assert focus(screen).helping


async def test_overlays_scroll_and_let_no_click_through(pointing):
    async with pointing() as (screen, mouse):
        await screen.press("2", "left", "i")
        await screen.press("question_mark")
        for name in ("help", "inspect"):
            region = screen.widget(name).region
            before = focus(screen)
            for x, y in ((region.x, region.y), (region.right - 1, region.bottom - 1), (region.x + 30, region.y + 5)):
                if name == "inspect" or "key" not in [role for _, role in screen.widget("help").line(y - region.y)]:
                    await mouse.click(x, y)
                    await mouse.hover(x, y)
                    assert focus(screen) == before
            await mouse.wheel(region.x + 4, region.y + 4)
            top = focus(screen).help_top if name == "help" else focus(screen).inspect_top
            assert top == 3
            await mouse.wheel(region.x + 4, region.y + 4, up=True)
            assert focus(screen) == before
            await screen.press("escape")


async def test_a_click_on_the_line_of_time_goes_there(pointing, recording):
    async with pointing() as (screen, mouse):
        await screen.press("space")
        line = screen.text("scrub")
        y = SIZE[1] - 2
        last = recording[-1].seq
        await mouse.click(line.index("━"), y)
        assert screen.app.scrub.seq == recording[0].seq
        left, right = line.index("━"), screen.text("scrub").rindex("─")
        await mouse.click(right, y)
        assert screen.app.scrub.seq == last
        middle = (left + right) // 2
        await mouse.click(middle, y)
        assert abs(screen.app.scrub.seq - last / 2) < 8  # the words beside the bar changed, and its length
        assert abs(screen.text("scrub").index("●") - middle) < 8
        assert f"step {screen.app.scrub.seq}" in screen.text("header")
        at = screen.app.scrub.seq
        await mouse.click(1, y)
        assert screen.app.scrub.seq == at


async def test_the_mouse_of_a_frozen_screen_points_into_the_past(pointing):
    async with pointing() as (screen, mouse):
        await screen.press("g", *"100", "enter")
        await mouse.click(*mouse.inside("batch", 77, 3))
        assert focus(screen).batch.step <= 100
        assert f"step {focus(screen).batch.step}" in screen.text("batch")


async def test_readonly_clicks_send_nothing(pointing):
    async with pointing(readonly=True) as (screen, mouse):
        await screen.press("6")
        for words in ("continuous", "paged", "auto", "512", "none was started"):
            await mouse.click(*mouse.cell(words, "control"))
        await screen.press("1")
        for x in range(0, SIZE[0], 7):
            await mouse.click(x, 1)
            await screen.app._question.close()
        assert screen.engine.changes == []
        assert "readonly" in text_of(screen.widget("footer").line(0))


@pytest.mark.parametrize("panel", PANELS)
async def test_clicks_and_the_wheel_anywhere_do_no_harm(pointing, panel):
    async with pointing((80, 24)) as (screen, _):
        for expanded in (False, True):
            screen.app.focus_now = Focus(panel=panel, expanded=expanded)
            screen.app.draw_frame()
            for place in screen.app._places:
                widget = screen.widget(place.name.split("-")[0])
                for y in range(0, place.height, 3):
                    for x in range(1, place.width, 17):
                        for kind in ("click", "up", "down", "hover"):
                            message = widget.Pointed(place, kind, x, y)
                            if place.name not in ("footer", "header"):
                                await screen.app.on_panel_pointed(message)
                                await screen.app._question.close()
        await screen.settle()
        assert screen.app.is_running
