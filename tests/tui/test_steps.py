"""Lanes are kept and taken over; a step's cells are by lane, and there is an end to them."""

from __future__ import annotations

import pytest

from engine.core import EngineCore
from engine.protocol import Control, Durations, EngineInfo
from engine.sampling_params import SamplingParams
from tui import steps
from tui.fold import EngineFold
from tui.history import History
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
    marked = cells.marked([("a", 1, "left"), ("x", 3, "left"), ("y", 2, "left"), ("z", 9, "left")])
    assert [(lane, cell.end) for lane, cell in marked.items()] == [(1, "left"), (3, "")]
    assert marked.marked([("a", 1, "aborted")]) is marked
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
            kept.mark([("0", 0, "preempted")], seq + 1)
            assert len(kept.kept) <= most * 1.1 + 1
        assert kept.kept[-1].seq == 299
        assert len(kept._before) <= len(kept.kept)


def test_a_whole_batch_that_leaves_is_kept_once_more_and_not_once_a_request(monkeypatch):
    monkeypatch.setattr(steps, "MAX_CELLS", 6_400)
    time = Durations(0.0, 0.0, 0.0, 0.0, 0.0)
    names = [str(lane) for lane in range(64)]
    kept = steps.Steps()
    row = tuple(steps.Cell(name, "held", lane) for lane, name in enumerate(names))
    for seq in range(0, 600, 3):
        kept.add(steps.Step(seq, 0.0, steps.Cells(row), 64, 512, False, time))
        kept.mark([(name, lane, "left") for lane, name in enumerate(names)], seq + 1)
        assert sum(len(before) for before in kept._before.values()) == len(kept.kept) <= 56
        assert {cell.end for cell in kept.until(seq + 1, 1)[0].cells.values()} == {"left"}
        assert {cell.end for cell in kept.until(seq, 1)[0].cells.values()} == {""}
    assert len(kept.kept) > 40


def test_a_switch_while_nothing_ran_is_marked_on_the_next_step(simulated):
    clock = simulated._Clock()
    core = EngineCore(
        simulated._Runner(clock), EngineInfo("m", "float32", "cpu", 4, 8, 1, 32, "0"), Control(), clock=clock
    )
    fold, history = EngineFold(core.snapshot()), History()
    history.begin(core.snapshot())

    def take(record):
        history.observe(record, fold)
        fold.apply(record)

    def answer(name):
        core.add(name, [1, 2, 3], SamplingParams(max_tokens=2))
        while (record := core.step()[1]) is not None:
            take(record)

    answer("a")
    core.set_control(Control(batching="static"))
    idle = core.flush()
    assert idle is not None
    assert not idle.rows
    take(idle)
    answer("b")
    assert [step.switched for step in history.steps] == [False, False, True, False]


def test_tokens_that_nobody_saw_are_of_no_known_time(simulated):
    clock = simulated._Clock()
    core = EngineCore(
        simulated._Runner(clock), EngineInfo("m", "float32", "cpu", 4, 8, 1, 32, "0"), Control(), clock=clock
    )
    fold, history = EngineFold(core.snapshot()), History()
    history.begin(core.snapshot())
    core.add("a", [1, 2, 3], SamplingParams(max_tokens=20))
    for _ in range(3):
        record = core.step()[1]
        history.observe(record, fold)
        fold.apply(record)
    for _ in range(5):
        core.step()
    later = core.snapshot()
    fold = EngineFold(later)
    history.begin(later, missing=5)
    core.abort("a", "stop")
    history.observe(core.flush(), fold)
    window = history.window(0.0, clock.time)
    assert len(window.e2e) == len(window.ended) == 1
    assert window.tpot == ()
