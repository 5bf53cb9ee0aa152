from collections.abc import Sequence

import msgspec
import pytest

from engine.plan import PlannedRow, StepPlan, StepResult
from engine.protocol import Control
from engine.rates import LEAST_TOKENS, WEIGHT, Rates
from tests.engine.mirror import MirrorRunner, greedy, mirror_core
from tests.engine.test_scheduler import finish, step

ENDLESS = {"ignore_eos": True}


def test_nothing_is_known_before_it_is_measured():
    rates = Rates()
    assert (rates.recompute_seconds(100), rates.swap_seconds(4)) == (None, None)


def test_the_first_measurement_counts_whole_and_later_ones_are_blended_in():
    rates = Rates()
    rates.computed(100, 1.0)
    assert rates.recompute_seconds(50) == pytest.approx(0.5)
    rates.computed(100, 2.0)
    assert rates.recompute_seconds(100) == pytest.approx(1.0 + WEIGHT)


def test_moves_are_measured_by_the_block():
    rates = Rates()
    rates.swapped(4, 0.4)
    assert rates.block == pytest.approx(0.1)
    rates.swapped(0, 9.0)
    rates.swapped(2, 0.4)
    assert rates.block == pytest.approx(0.1 + WEIGHT * 0.1)


def test_steps_too_short_to_tell_are_not_counted():
    rates = Rates()
    rates.computed(LEAST_TOKENS - 1, 5.0)
    assert rates.recompute_seconds(1) is None
    rates.computed(LEAST_TOKENS, 1.6)
    assert rates.recompute_seconds(1) == pytest.approx(0.1)


class TimedRunner(MirrorRunner):
    """Computing takes 1 ms a token (`token`), moving 10 ms a move."""

    token = 0.001

    def move(self, plan: StepPlan) -> float:
        super().move(plan)
        return plan.num_moves / 100

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        result, forward = super().compute(rows), sum(row.count for row in rows) * self.token
        return msgspec.structs.replace(result, prepare=forward / 4, forward=forward * 3 / 4)


def test_an_engine_learns_them_from_steps_that_do_little_else():
    core = mirror_core(16, 4, 64, Control(preempt="swap", prefix_cache=False), num_host_blocks=16)
    core.runner = TimedRunner(16, 4, 16)
    core.add("a", [1] * 20, greedy(9, **ENDLESS))
    step(core)
    assert core.rates.recompute_seconds(1) == pytest.approx(0.001)
    step(core)  # one decode: no prefill
    assert core.rates.recompute_seconds(1) == pytest.approx(0.001)
    core.scheduler.preempt(core.scheduler.running[0])
    finish(core)
    assert core.rates.block == pytest.approx(0.01)


def test_a_step_of_decodes_is_no_measure_of_a_prefill():
    core = mirror_core(32, 4, 64)
    core.runner = runner = TimedRunner(32, 4)
    for index in range(LEAST_TOKENS):
        core.add(f"r{index}", [index], greedy(3, **ENDLESS))
    assert len(step(core).rows) == LEAST_TOKENS
    runner.token = 1.0
    assert len(step(core).rows) == LEAST_TOKENS
    assert core.rates.recompute_seconds(1) == pytest.approx(0.001)


def test_copies_on_the_device_are_no_measure_of_a_swap():
    core = mirror_core(32, 4, 64, num_host_blocks=16)
    core.runner = TimedRunner(32, 4, 16)
    core.add("a", [1] * 18, greedy(4, **ENDLESS), siblings=["a.1"])
    records, _, _ = finish(core)
    assert any(record.copies for record in records)
    assert core.rates.swap_seconds(1) is None
