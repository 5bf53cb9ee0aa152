"""The screen as pictures: a recorded stream, a clock that stands still, and the baselines beside this file.

After a wanted change: pytest tests/tui/test_snapshots.py --snapshot-update, and look at the SVG files.
"""

from __future__ import annotations

import asyncio

import pytest

from tui.app import PagedTop
from tui.look import Look
from tui.session import Session


@pytest.mark.parametrize(
    ("size", "records", "keys"),
    [
        pytest.param((80, 24), 131, (), id="static-80x24"),
        pytest.param((160, 48), 131, (), id="static-160x48"),
        pytest.param((80, 24), None, (), id="continuous-80x24"),
        pytest.param((160, 48), None, (), id="continuous-160x48"),
        pytest.param((80, 24), None, ("question_mark",), id="help-80x24"),
    ],
)
def test_screen(snap_compare, recording, played, size, records, keys):
    engine = played(recording[:records])

    async def ready(pilot):
        await asyncio.wait_for(engine.played.wait(), 20)
        for key in keys:
            await pilot.press(key)
        pilot.app.draw_frame()
        await pilot.pause()

    app = PagedTop(Session(engine=engine, clock=lambda: 0.0), Look(), frames=False)
    assert snap_compare(app, terminal_size=size, run_before=ready)
