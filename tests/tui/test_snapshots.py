"""The screen as pictures: a recorded stream, a clock that stands still, and the baselines beside this file.

After a wanted change: pytest tests/tui/test_snapshots.py --snapshot-update, and look at the SVG files.
"""

from __future__ import annotations

import asyncio

import pytest

from tui.app import PagedTop
from tui.look import ASCII, UNICODE, Look
from tui.session import Session
from tui.themes import THEMES

STATIC = 131  # items of the recording, of which all are static and reserved
SIZES = [(40, 14), (80, 24), (120, 40), (200, 60)]


@pytest.fixture
def matches(snap_compare, recording, played):
    """Whether the screen after some keys is the picture that is kept."""

    def compare(size, keys=(), theme="dark", glyphs=UNICODE, records=None):
        engine = played(recording[:records])

        async def ready(pilot):
            await asyncio.wait_for(engine.played.wait(), 20)
            await pilot.press(*keys)
            pilot.app.draw_frame()
            await pilot.pause()

        app = PagedTop(Session(engine=engine, clock=lambda: 0.0), Look(glyphs, THEMES[theme]), frames=False)
        return snap_compare(app, terminal_size=size, run_before=ready)

    return compare


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_theme(matches, size, theme):
    assert matches(size, theme=theme)


@pytest.mark.parametrize("size", SIZES[1:3], ids=lambda size: f"{size[0]}x{size[1]}")
def test_static(matches, size):
    assert matches(size, records=STATIC)


def test_ascii(matches):
    assert matches((80, 24), theme="mono", glyphs=ASCII)


@pytest.mark.parametrize(
    ("size", "keys"),
    [
        pytest.param((80, 24), ("question_mark",), id="help-80x24"),
        pytest.param((160, 48), ("question_mark",), id="help-160x48"),
        pytest.param((120, 40), ("down", "i"), id="inspect-block"),
        pytest.param((120, 40), ("5", "home", "down", "enter"), id="inspect-request"),
        pytest.param((120, 40), ("2", "2", "down", "left", "left"), id="batch"),
        pytest.param((120, 40), ("3", "3", "home"), id="sharing"),
        pytest.param((120, 40), ("4", "4"), id="ledgers"),
        pytest.param((120, 40), ("5", "home"), id="requests"),
        pytest.param((80, 24), ("6",), id="control"),
        pytest.param((120, 40), ("N", "N", "comma"), id="paused"),
    ],
)
def test_screen(matches, size, keys):
    assert matches(size, keys)
