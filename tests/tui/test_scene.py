"""Panels fill the screen without overlapping, and give way in the stated order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tui import scene
from tui.block_columns import BlockColumns
from tui.look import Look
from tui.panels.line import length, text_of
from tui.view import Frame, Link, Status


@pytest.fixture(scope="module")
def empty(recording, fold, frame):
    """A frame over a pool of some blocks, none of them held."""

    def make(blocks):
        if not blocks:
            return Frame(Status(Link("connecting")), None)
        shown = frame(fold(recording))
        return replace(shown, view=replace(shown.view, blocks=BlockColumns(blocks)))

    return make


@pytest.mark.parametrize("blocks", [0, 100, 1456, 1_000_000])
def test_places_tile_every_size(blocks, empty):
    frame = empty(blocks)
    for width in range(40, 260, 7):
        for height in range(12, 90, 5):
            taken = {}
            for place in scene.arrange(width, height, frame):
                for y in range(place.y, place.y + place.height):
                    row = taken.setdefault(y, [])
                    row.append((place.x, place.x + place.width))
            assert sorted(taken) == list(range(height))
            for spans in taken.values():
                edges = sorted(spans)
                assert edges[0][0] == 0
                assert edges[-1][1] == width
                assert all(a[1] == b[0] for a, b in pairwise(edges))


def test_panels_give_way_in_order(empty):
    def names(width, height):
        places = scene.arrange(width, height, empty(1456))
        return {place.name.split("-")[0] for place in places} - {"header", "footer"}

    assert names(200, 48) == {"blocks", "batch", "sharing", "waste", "speed", "requests"}
    assert names(160, 48) == names(80, 24) == {"blocks", "batch", "sharing", "waste", "speed"}
    assert names(70, 20) == {"blocks", "batch", "sharing"}
    assert names(50, 18) == {"blocks", "batch"}
    assert names(40, 12) == {"blocks"}
    assert names(39, 12) == names(40, 11) == set()


def test_every_line_fits_at_every_size(recording, fold, frame):
    shown = frame(fold(recording))
    blank = Frame(Status(Link("connecting"), "http://127.0.0.1:1"), None)
    for picture in (shown, blank):
        for width in (*range(20, 130, 9), 160, 200, 400):
            for height in (5, 11, 12, 15, 20, 24, 36, 48, 100):
                lines = scene.draw(picture, width, height, Look())
                assert len(lines) == height
                assert {length(line) for line in lines} == {width}


def test_too_small_says_so():
    lines = scene.draw(Frame(Status(Link("live")), None), 30, 9, Look())
    assert "paged-top needs 40 x 12" in "\n".join(text_of(line) for line in lines)
