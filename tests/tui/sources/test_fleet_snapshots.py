"""A fleet and one of its servers as pictures: heard at set moments, on a clock that stands still.

After a wanted change: pytest tests/tui/sources/test_fleet_snapshots.py --snapshot-update, and look at the SVG files.
"""

from __future__ import annotations

import pytest

from tests.tui.sources.fleets import Clock, fill, still
from tui.app import PagedTop
from tui.look import ASCII, UNICODE, Look
from tui.themes import THEMES


@pytest.fixture
def matches(snap_compare):
    """Whether the screen after some keys is the picture that is kept."""

    def compare(size, keys=(), theme="dark", glyphs=UNICODE):
        clock = Clock()
        attach = still(clock)

        async def ready(pilot):
            fill(attach.sources, clock)
            await pilot.press(*keys)
            pilot.app.draw_frame()
            await pilot.pause()

        return snap_compare(
            PagedTop(attach, Look(glyphs, THEMES[theme]), frames=False), terminal_size=size, run_before=ready
        )

    return compare


@pytest.mark.parametrize("size", [(40, 14), (80, 24), (120, 30), (200, 30)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_fleet(matches, size):
    assert matches(size)


@pytest.mark.parametrize(
    ("keys", "theme", "glyphs"),
    [
        pytest.param((), "light", UNICODE, id="light"),
        pytest.param((), "mono", ASCII, id="ascii"),
        pytest.param(("down", "down", "down", "i"), "dark", UNICODE, id="inspect"),
        pytest.param(("comma",), "dark", UNICODE, id="paused"),
    ],
)
def test_screen(matches, keys, theme, glyphs):
    assert matches((120, 30), keys, theme, glyphs)
