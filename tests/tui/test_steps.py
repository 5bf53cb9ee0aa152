"""Lanes are kept and taken over; a step's cells are by lane, and there is an end to them."""

from __future__ import annotations

import pytest

from engine.protocol import Durations
from tui import steps
from tui.lanes import Lanes


def test_cells_are_a_mapping_by_lane():
    cells = steps.Cells((None, steps.Cell("a", "decode", 3), None, steps.Cell("b", "prefill", 4)))
    assert list(cells) == [1, 3]
    assert dict(cells.items()) == {1: steps.Cell("a", "decode", 3), 3: steps.Cell("b", "prefill", 4)}
    assert [cell.request for cell in cells.values()] == ["a", "b"]
    assert (cells.get(0), cells.get(9), cells.get(-1), len(cells), cells.lanes) == (None, None, None, 2, 4)
    assert 1 in cells
    assert 0 not in cells
    with pytest.raises(KeyError):
        cells[2]
    assert cells.marked(1, "left")[1].end == "left"
    assert cells[1].end == ""


def test_the_lowest_free_lane_is_taken_next_and_again_after_being_restored():
    lanes = Lanes()
    lanes.begin(["a", "b", "c", "d"])
    lanes.begin(["d", "b", "e"])
    assert lanes.by_request == {"b": 1, "d": 3, "e": 0}
    again = Lanes(lanes.by_request)
    again.begin([*again.by_request, "f", "g"])
    assert again.by_request == {"b": 1, "d": 3, "e": 0, "f": 2, "g": 4}


def test_wide_steps_and_narrow_ones_have_the_same_bound(monkeypatch):
    monkeypatch.setattr(steps, "MAX_CELLS", 6_400)
    time = Durations(0.0, 0.0, 0.0, 0.0, 0.0)
    for width, most in ((1, 100), (64, 100), (640, 10)):
        kept = steps.Steps()
        row = tuple(steps.Cell(str(lane), "decode", lane) for lane in range(width))
        for seq in range(300):
            kept.add(steps.Step(seq, 0.0, steps.Cells(row), width, 512, False, time))
            kept.mark("0", 0, "preempted", seq + 1)
            assert len(kept.kept) <= most * 1.1 + 1
        assert kept.kept[-1].seq == 299
        assert len(kept._before) <= len(kept.kept)
