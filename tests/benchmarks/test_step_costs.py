"""Costs fitted to steps whose costs are known: those of a simulated engine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.step_costs import first_tokens, fitted, scattered, spread, timed, work_of
from engine.protocol import Record
from engine.simulator.runner import StepCost, StepWork
from engine.simulator.simulate import Simulator
from engine.trace_lengths import read_trace
from tests.engine.simulator.traces import settings

CHAT500 = Path(__file__).resolve().parents[2] / "traces" / "chat500.jsonl"
COST = StepCost(step=0.012, token=0.0009, context=1.5e-6, row=0.0004, attention=3e-7, move=0.0)


def recorded(cost: StepCost, requests: int = 60) -> list[Record]:
    """The records of an engine of such steps, on a busy stretch of chats."""
    trace = read_trace(CHAT500)[:requests]
    of_chats = {"block_size": 16, "max_model_len": 4096, "speed": 20.0, "check_invariants": False, "num_blocks": 2000}
    simulator = Simulator(trace, settings(requests, cost=cost, partial_hits=False, **of_chats))
    records: list[Record] = []
    step = simulator.core.step

    def stepping() -> object:
        outputs, record = step()
        if record is not None:
            records.append(record)
        return outputs, record

    simulator.core.step = stepping  # type: ignore[method-assign, assignment]
    simulator.run()
    return records


def test_known_costs_are_found_again() -> None:
    steps = timed(recorded(COST))
    found = fitted(steps)
    told = [getattr(found, field) for field in ("step", "token", "context", "row", "attention")]
    # A simulated step's own seconds have what this process took for it, microseconds.
    known = [getattr(COST, field) for field in ("step", "token", "context", "row", "attention")]
    assert told == pytest.approx(known, rel=0.2)
    assert spread(found, steps) == pytest.approx((1.0, 0.0), abs=0.05)


def test_what_passes_between_steps_is_part_of_each_and_a_pause_is_not() -> None:
    records = recorded(COST, 8)
    late, passed, told = 0.0, 0.25, []
    for before, record in zip([None, *records], records, strict=False):
        late += passed if before is not None and before.rows else 0.0
        told.append(msgspec.structs.replace(record, time=record.time + late))
    steps = timed(told)
    assert len(steps) == sum(bool(record.rows) for record in records)
    assert [seconds - COST.seconds(work) for work, seconds in steps] == pytest.approx([passed] * len(steps), abs=0.01)
    with pytest.raises(ValueError, match="no step began"):
        timed(told[:1])


def test_no_cost_is_below_nothing_whatever_the_noise() -> None:
    random = np.random.default_rng(1)
    works = [work_of(record) for record in recorded(COST, 30)]
    steps = [(work, float(COST.seconds(work) * random.uniform(0.3, 3.0))) for work in works]
    found = fitted(steps)
    assert min(msgspec.structs.astuple(found)) >= 0
    assert spread(found, steps)[0] == pytest.approx(1.0, rel=0.01)  # all together cost what they took


def test_what_is_not_done_costs_nothing_and_few_steps_are_too_few() -> None:
    steps = [(StepWork(count, 0, 0, 0), 0.5 + count) for count in range(1, 80)]
    found = fitted(steps)
    assert (found.step, found.token) == (pytest.approx(0.5), pytest.approx(1.0))
    assert (found.context, found.row, found.attention) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="at least 50"):
        fitted(steps[:9])


def test_scattered_steps_cost_what_was_taken_in_the_mean_and_the_same_each_time() -> None:
    works = [StepWork(1, context, 1, context) for context in range(1, 2001)]
    known = [(work, COST.seconds(work) * (0.5 if work.context % 2 else 1.5)) for work in works]
    one, other = scattered(COST, known, 0), scattered(COST, known, 1)
    ratios = [one.seconds(work) / COST.seconds(work) for work in works]
    assert set(np.round(ratios, 9)) == {0.5, 1.5}
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.05)
    assert ratios == [one.seconds(work) / COST.seconds(work) for work in works]
    assert ratios != [other.seconds(work) / COST.seconds(work) for work in works]


def test_first_tokens_are_counted_from_each_arrival() -> None:
    records = recorded(COST, 30)
    found = first_tokens(records)
    assert len(found) == 30
    came = {one.request: one.time for record in records for one in record.arrived}
    first = next(record for record in records if any(row.sampled for row in record.rows))
    told = sorted(first.time - came[row.request] for row in first.rows if row.sampled)
    assert sorted(found[: len(told)]) == told
    handed = [
        msgspec.structs.replace(
            record, arrived=tuple(msgspec.structs.replace(one, generated_tokens=1) for one in record.arrived)
        )
        for record in records
    ]
    assert first_tokens(handed) == [], "another engine has told them"
