"""A cluster as pictures: states that are known by hand, on a clock that stands still.

After a wanted change: pytest tests/tui/cluster/test_cluster_snapshots.py --snapshot-update, and look at the SVG files.
"""

from __future__ import annotations

import pytest

from tests.tui.cluster.clusters import busy, early, many, wounded
from tests.tui.cluster.conftest import Clock, Still
from tui.app import PagedTop
from tui.look import ASCII, UNICODE, Look
from tui.sources.targets import target
from tui.themes import THEMES


@pytest.fixture
def matches(snap_compare):
    """Whether the screen after some states and keys is the picture that is kept."""

    def compare(size, states=(early, busy), keys=(), theme="dark", glyphs=UNICODE):
        attach = Still(target("http://127.0.0.1:8000"), clock=Clock())

        async def ready(pilot):
            for state in states:
                attach.hear(state())
            await pilot.press(*keys)
            pilot.app.draw_frame()
            await pilot.pause()

        return snap_compare(
            PagedTop(attach, Look(glyphs, THEMES[theme]), frames=False), terminal_size=size, run_before=ready
        )

    return compare


@pytest.mark.parametrize("size", [(40, 14), (80, 24), (160, 48)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_cluster(matches, size):
    assert matches(size)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_one_that_is_wounded(matches, size):
    assert matches(size, (early, busy, wounded))


@pytest.mark.parametrize(
    ("size", "states", "keys", "theme", "glyphs"),
    [
        pytest.param((80, 24), (early, busy, wounded), (), "mono", ASCII, id="ascii"),
        pytest.param((80, 24), (early, busy), (), "16", UNICODE, id="16-colours"),
        pytest.param((160, 48), (early, busy), ("i",), "light", UNICODE, id="inspect"),
        pytest.param((160, 48), (early, busy), ("question_mark",), "dark", UNICODE, id="help"),
        pytest.param((120, 30), (many,), ("end",), "dark", UNICODE, id="thousand"),
        pytest.param((120, 30), (early, busy), ("comma",), "dark", UNICODE, id="paused"),
    ],
)
def test_screen(matches, size, states, keys, theme, glyphs):
    assert matches(size, states, keys, theme, glyphs)
