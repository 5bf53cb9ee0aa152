"""Requests that run out of time, wherever they are. The clock of these engines is set by hand."""

from __future__ import annotations

from functools import partial

import pytest

from engine.core import EngineCore
from engine.messages import Output
from engine.protocol import Control, Record
from engine.sampling_params import BeamParams, SchedulingParams
from tests.engine.mirror import MirrorRunner, expected_output, greedy, mirror_core
from tests.engine.test_scheduler import finish

ENDLESS = {"ignore_eos": True}
SECOND = SchedulingParams(timeout=1.0)


class HandClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def timed_core(control: Control | None = None, host: int = 0) -> tuple[EngineCore, HandClock]:
    core, clock = mirror_core(32, 4, 64, control, host), HandClock()
    core.clock = clock
    return core, clock


def ends(outputs: tuple[Output, ...]) -> list[tuple[str, str]]:
    return [(output.request, output.finished) for output in outputs if output.finished]


def left(record: Record | None) -> list[tuple[str, str]]:
    assert record is not None
    return [(one.request, one.reason) for one in record.left]


@pytest.mark.parametrize(("now", "expired"), [(0.99, False), (1.0, True)])
def test_one_that_waits_expires_at_its_arrival_and_its_timeout(now, expired):
    core, clock = timed_core(Control(max_num_seqs=1))
    core.add("busy", [1], greedy(9, **ENDLESS))
    core.step()
    core.add("late", [2], greedy(9, **ENDLESS), SECOND)
    clock.now = now
    outputs, record = core.step()
    assert ends(outputs) == ([("late", "deadline")] if expired else [])
    assert left(record) == ([("late", "deadline")] if expired else [])
    assert core.counters.expired == expired


def test_one_that_runs_expires_with_the_tokens_it_has_and_frees_its_blocks():
    core, clock = timed_core()
    core.add("a", [1] * 5, greedy(50, **ENDLESS), SECOND)
    core.add("b", [2] * 5, greedy(5, **ENDLESS))
    tokens = [output.token_id for _ in range(3) for output in core.step()[0] if output.request == "a"]
    clock.now = 1.5
    outputs, record = core.step()
    assert ends(outputs) == [("a", "deadline")]
    assert record is not None
    assert [row.request for row in record.rows] == ["b"], "it is in no row of that step"
    assert tokens == expected_output([1] * 5, greedy(3, **ENDLESS), 64)[0]
    finish(core)
    assert core.pool.num_available == 32


def test_one_that_expires_alone_is_told_without_a_step():
    core, clock = timed_core()
    core.add("a", [1] * 5, greedy(50, **ENDLESS), SECOND)
    core.step()
    clock.now = 2.0
    outputs, record = core.step()
    assert record is not None
    assert (ends(outputs), left(record), record.rows) == ([("a", "deadline")], [("a", "deadline")], ())
    assert core.step() == ((), None), "once"


def test_a_request_that_ends_in_time_never_expires():
    core, clock = timed_core()
    core.add("a", [1], greedy(2, **ENDLESS), SECOND)
    finish(core)
    clock.now = 5.0
    assert core.step() == ((), None)
    assert core.counters.expired == 0


def test_a_deadline_that_passes_while_a_step_runs_ends_it_in_the_next():
    core, clock = timed_core()
    core.add("a", [1], greedy(9, **ENDLESS), SECOND)
    runner = core.runner
    assert isinstance(runner, MirrorRunner)
    runner.during = lambda: setattr(clock, "now", 3.0)
    outputs, _ = core.step()
    assert [(output.token_id is not None, output.finished) for output in outputs] == [(True, None)]
    assert ends(core.step()[0]) == [("a", "deadline")]


def test_those_to_be_forked_expire_with_their_parent():
    # Trap 18.
    core, clock = timed_core(Control(max_num_batched_tokens=2))
    core.add("a", [1] * 6, greedy(5, **ENDLESS), SECOND, siblings=["b", "c"])
    core.step()
    clock.now = 1.0
    outputs, record = core.step()
    assert sorted(ends(outputs)) == sorted(left(record)) == [(name, "deadline") for name in "abc"]
    assert (core.pool.num_available, core.has_work) == (32, False)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_search_expires_as_a_whole_and_is_told_once(steps):
    core, clock = timed_core()
    core.add("a", [1] * 6, greedy(20, beam=BeamParams(3), **ENDLESS), SECOND, siblings=["b", "c"])
    for _ in range(steps):
        core.step()
    clock.now = 1.0
    outputs, record = core.step()
    assert ends(outputs) == [("a", "deadline")]
    assert sorted(left(record)) == [(name, "deadline") for name in "abc"]
    assert (core.pool.num_available, core.has_work) == (32, False)


def test_a_preempted_request_expires_and_frees_its_host_blocks():
    core, clock = timed_core(Control(preempt="swap", max_num_seqs=1), host=8)
    core.add("a", [1] * 6, greedy(20, **ENDLESS), SECOND)
    core.step()
    core.scheduler.preempt(core.scheduler.running[0])
    core.scheduler.kv.settle()
    assert core.scheduler.kv.host.num_used == 2
    clock.now = 1.0
    assert ends(core.step()[0]) == [("a", "deadline")]
    assert core.scheduler.kv.host.num_used == 0


def test_one_that_is_held_in_a_static_batch_has_ended_already():
    core, clock = timed_core(Control(batching="static"))
    core.add("short", [1], greedy(1), SECOND)
    core.add("long", [2], greedy(4, **ENDLESS))
    core.step()
    clock.now = 2.0
    assert ends(core.step()[0]) == []
    finish(core)
    assert (core.counters.expired, core.counters.length_capped) == (0, 2)


def test_an_id_that_is_used_again_does_not_inherit_a_deadline():
    core, clock = timed_core()
    core.add("a", [1], greedy(9, **ENDLESS), SECOND)
    core.abort("a")
    core.add("a", [2], greedy(3, **ENDLESS))
    clock.now = 5.0
    assert finish(core)[2] == {"a": "length"}


def test_many_expire_in_one_step():
    core, clock = timed_core(Control(max_num_seqs=4))
    for index in range(20):
        core.add(f"r{index}", [index], greedy(30, **ENDLESS), SchedulingParams(timeout=1.0 + index % 2))
    core.step()
    clock.now = 1.5
    outputs, _ = core.step()
    assert {name for name, _ in ends(outputs)} == {f"r{index}" for index in range(0, 20, 2)}
    assert {row.id for row in core.scheduler.running} == {"r1", "r3", "r5", "r7"}


def test_deadlines_of_requests_that_have_ended_do_not_heap_up():
    core, _ = timed_core()
    core.check_invariants = False
    core.add("stays", [1], greedy(60, **ENDLESS), SchedulingParams(timeout=1e6))
    longest = 0
    for index in range(1000):
        core.add(f"r{index}", [2], greedy(1), SchedulingParams(timeout=1000.0))
        core.abort(f"r{index}")
        if index % 20 == 0:
            core.step()
            longest = max(longest, len(core.scheduler._deadlines))
    assert longest <= 2 * 2 + 64 + 20
    assert "stays" in [request for _, _, request in core.scheduler._deadlines]


@pytest.mark.parametrize("how", ["deadline", "abort", "abort in a step"])
def test_a_search_that_must_end_early_gives_what_it_found(how):
    timeout = 0.03 if how == "deadline" else None
    core = mirror_core(num_blocks=64)
    search = greedy(40, ignore_eos=True, stop_token_ids=tuple(range(8)), beam=BeamParams(4, 3.0, "never"))
    core.add("b", [1, 2, 3], search, SchedulingParams(timeout=timeout), ["b1", "b2", "b3"])
    told = []
    for step in range(100):
        if step == 10 and how != "deadline":
            runner = core.runner
            assert isinstance(runner, MirrorRunner)
            abort = partial(core.abort, "b2")
            if how == "abort":
                abort()
            runner.during = abort if how == "abort in a step" else runner.during
        told += core.step()[0]
        if not core.has_work:
            break
    told += core.step()[0]
    (output,) = told
    reason = how.split()[0]
    assert (output.request, output.finished) == ("b", reason)
    assert 1 <= len(output.beams) <= 4
    assert {beam.finished for beam in output.beams} <= {"stop", reason}
    assert [beam.score for beam in output.beams if beam.finished == "stop"] == sorted(
        (beam.score for beam in output.beams if beam.finished == "stop"), reverse=True
    )
    assert core.pool.num_available == 64
    assert not core.scheduler.found_beams
