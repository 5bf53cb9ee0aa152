"""A step that fails on the device: whom it costs an answer, who goes on, and that nothing is lost or found wrongly.

The mirror's device leaves its slots half written, and garbage wherever blocks were to be moved; the state machine of
test_core.py makes the same faults at random.
"""

from __future__ import annotations

import pytest

from engine.core import MOST_FAILURES, EngineCore, StepsFail, seeded
from engine.messages import Output
from engine.protocol import Control, PoolTotals, Record
from engine.sampling_params import BeamParams, SchedulingParams
from tests.engine.mirror import MirrorRunner, expected_beams, expected_output, greedy, mirror_core
from tui.checks import check_record
from tui.fold import EngineFold

ENDLESS = {"ignore_eos": True}
FAILED = "the step that computed this request failed: RuntimeError: computing failed; the engine goes on"
NOT_MOVED = "the step that moved this request's KV failed: RuntimeError: the moves failed; the engine goes on"


class Watched:
    """A core whose every record is folded and compared with its snapshot, and whose news are kept."""

    def __init__(self, core: EngineCore) -> None:
        assert isinstance(core.runner, MirrorRunner)
        self.core = core
        self.runner = core.runner
        self.fold = EngineFold.from_snapshot(core.snapshot())
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, Output] = {}
        self.records: list[Record] = []

    def step(self) -> Record:
        outputs, record = self.core.step()
        assert record is not None
        check_record(record, self.fold)
        self.fold.apply(record)
        assert self.fold.to_snapshot() == self.core.snapshot()
        for output in outputs:
            if output.token_id is not None:
                self.tokens.setdefault(output.request, []).append(output.token_id)
            if output.finished is not None:
                assert output.request not in self.ends, "an end is told twice"
                self.ends[output.request] = output
        self.records.append(record)
        return record

    def fail(self, kind: str) -> Record:
        self.runner.fault = kind  # type: ignore[assignment]
        record = self.step()
        self.runner.fault = ""
        return record

    def finish(self) -> None:
        while self.core.has_work:
            self.step()
        if self.core.scheduler.events.released:
            self.step()
        pool = self.core.snapshot().pool
        assert pool == PoolTotals(free=pool.free, cached=pool.cached)
        assert self.core.scheduler.kv.host.num_used == 0

    def errors(self) -> dict[str, str | None]:
        return {name: end.error for name, end in self.ends.items() if end.finished == "error"}

    def answers(self, prompt: list[int], *names: str, max_tokens: int = 9) -> None:
        for name in names:
            assert self.tokens[name] == expected_output(prompt, greedy(max_tokens, **ENDLESS), 64)[0]


def watched(control: Control | None = None, num_blocks: int = 32, host: int = 0, limit: int = 64) -> Watched:
    return Watched(mirror_core(num_blocks, 4, limit, control, host))


# In computing


def test_a_step_that_fails_ends_the_requests_in_it_and_no_others():
    at = watched(Control(max_num_seqs=2))
    for name in ("a", "b", "c"):
        at.core.add(name, [1, 2, 3], greedy(9, **ENDLESS))
    at.step()
    record = at.fail("compute")
    assert at.errors() == {"a": FAILED, "b": FAILED}
    assert (record.rows, record.fault) == ((), "computing failed: RuntimeError: computing failed")
    assert [(left.request, left.reason) for left in record.left] == [("a", "error"), ("b", "error")]
    at.finish()
    at.answers([1, 2, 3], "c")
    assert at.core.counters.failed == 2
    assert not any(record.fault for record in at.records[2:])


def test_nothing_of_a_failed_step_is_found_again():
    at = watched()
    at.core.add("a", list(range(12)), greedy(9))
    record = at.fail("compute")
    assert at.core.snapshot().pool == record.pool == PoolTotals(free=32)
    at.core.add("b", list(range(12)), greedy(9, **ENDLESS))
    assert at.step().joined[0].cached_tokens == 0
    at.finish()
    at.answers(list(range(12)), "b")


def test_what_was_computed_before_is_still_found():
    at = watched(Control(max_num_batched_tokens=8, max_prefill_chunk=8))
    at.core.add("a", list(range(20)), greedy(9))
    at.step()
    at.fail("compute")
    assert at.core.snapshot().pool == PoolTotals(free=30, cached=2)
    at.core.add("b", list(range(20)), greedy(9, **ENDLESS))
    assert at.step().joined[0].cached_tokens == 8
    at.finish()
    at.answers(list(range(20)), "b")


def test_those_to_be_forked_off_a_request_fail_with_it():
    at = watched()
    at.core.add("a", [1] * 6, greedy(9), siblings=["a.1", "a.2"])
    at.fail("compute")
    assert at.errors() == {"a": FAILED, "a.1": FAILED, "a.2": FAILED}
    at.finish()


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_search_fails_as_a_whole_and_is_told_once(after: int):
    at = watched()
    at.core.add("a", [1] * 6, greedy(9, beam=BeamParams(3), **ENDLESS), siblings=["a.1", "a.2"])
    for _ in range(after):
        at.step()
    record = at.fail("compute")
    assert at.errors() == {"a": FAILED}
    assert {left.request for left in record.left} == {"a", "a.1", "a.2"}
    at.finish()


def test_finished_members_of_a_static_batch_keep_their_answers_and_their_place():
    at = watched(Control(batching="static"))
    at.core.add("short", [5, 6], greedy(1, **ENDLESS))
    at.core.add("long", [1, 2, 3], greedy(9, **ENDLESS))
    at.step()
    at.core.add("next", [1, 2, 3], greedy(9, **ENDLESS))
    assert at.core.scheduler.held
    at.fail("compute")
    assert at.errors() == {"long": FAILED}
    assert [request.id for request in at.core.scheduler.held] == ["short"]
    assert at.step().released == ("short",)
    at.finish()
    assert at.ends["short"].finished == "length"
    at.answers([1, 2, 3], "next")


def test_a_reservation_is_given_back():
    at = watched(Control(allocation="reserved"), num_blocks=16)
    at.core.add("a", [1, 2, 3], greedy(9))
    at.core.add("b", [1, 2, 3], greedy(9, **ENDLESS))
    assert at.fail("compute").queue.head.cause == "hole"
    at.finish()
    at.answers([1, 2, 3], "b")


def test_a_request_aborted_while_its_step_fails_is_gone():
    at = watched()
    at.core.add("a", [1, 2, 3], greedy(9))
    at.core.add("b", [1, 2], greedy(9))
    at.runner.during = lambda: at.core.abort("a")
    at.fail("compute")
    at.runner.during = lambda: None
    assert not at.core.has_work
    assert at.errors()["b"] == FAILED
    at.finish()


# In moving


def test_a_copy_that_was_not_made_costs_its_owner_alone():
    at = watched()
    at.core.add("a", list(range(10)), greedy(9, **ENDLESS), siblings=["a.1"])
    at.core.add("b", [1, 2, 3], greedy(9, **ENDLESS))
    at.step()
    record = at.fail("move")
    (failed,) = at.errors()
    assert at.errors() == {failed: NOT_MOVED}
    assert (record.copies, record.rows) == ((), ())
    assert record.fault == "moving blocks failed: RuntimeError: the moves failed"
    at.finish()
    at.answers([1, 2, 3], "b")
    at.answers(list(range(10)), *({"a", "a.1"} - {failed}))
    assert at.core.counters.copied_blocks == 0, "the other one writes in place now"


def test_a_search_loses_all_beams_with_one_copy():
    at = watched()
    at.core.add("a", [1] * 6, greedy(9, beam=BeamParams(3), **ENDLESS), siblings=["a.1", "a.2"])
    at.step()
    at.fail("move")
    assert at.errors() == {"a": NOT_MOVED}
    at.finish()


def test_part_of_a_cached_block_that_was_not_copied_is_not_told_as_found():
    at = watched()
    at.core.add("a", list(range(10)), greedy(1))
    at.step()
    at.core.add("b", [*range(6), *range(20, 24)], greedy(9))
    record = at.fail("move")
    (joined,) = record.joined
    assert (joined.cached_tokens, joined.copied_tokens) == (4, 0)
    assert at.errors() == {"b": NOT_MOVED}
    at.finish()


def fill_pool(at: Watched) -> None:
    """Two requests that fill the pool: the later one is swapped out for the other in the third step."""
    for name in ("a", "b"):
        at.core.add(name, [1, 2, 3, 4, 5, 6, int(name, 16)], greedy(9, **ENDLESS))
    at.step()
    at.step()


def test_kv_that_did_not_reach_the_host_is_computed_again():
    at = watched(Control(preempt="swap", prefix_cache=False), num_blocks=5, host=8, limit=20)
    fill_pool(at)
    record = at.fail("move")
    (lost,) = record.preempted
    assert (lost.request, lost.by, lost.lost_tokens, lost.swapped_blocks) == ("b", "recompute", 8, 0)
    assert at.errors() == {}
    assert record.host_blocks == 0
    at.finish()
    assert at.core.counters.swapped_out_blocks == 0
    assert sum(joined.recomputed_tokens for record in at.records for joined in record.joined) == 8
    for name in ("a", "b"):
        prompt = [1, 2, 3, 4, 5, 6, int(name, 16)]
        assert at.tokens[name] == expected_output(prompt, greedy(9, **ENDLESS), 20)[0]


def test_a_search_that_did_not_reach_the_host_is_computed_again():
    control = Control(preempt="swap", prefix_cache=False, scheduling_policy="priority", max_num_seqs=2)
    at = watched(control, host=16)
    sampling = greedy(9, beam=BeamParams(2), **ENDLESS)
    at.core.add("a", [1] * 6, sampling, siblings=["a.1"])
    at.step()
    at.step()
    at.step()
    at.core.add("b", [2] * 5, greedy(9, **ENDLESS), SchedulingParams(priority=-1))
    at.core.scheduler.preempt(at.core.scheduler.requests["a"])  # the next step moves it, and computes b
    record = at.fail("move")
    assert [(lost.request, lost.by) for lost in record.preempted] == [("a", "recompute"), ("a.1", "recompute")]
    at.finish()
    assert at.ends["a"].beams == expected_beams([1] * 6, sampling, 64)
    at.answers([2] * 5, "b")


def test_kv_that_did_not_come_back_costs_its_owner_and_is_not_found():
    at = watched(Control(preempt="swap"), num_blocks=5, host=8, limit=20)
    fill_pool(at)
    while not at.core.scheduler.requests["b"].num_swapped or "a" in at.core.scheduler.requests:
        at.step()
    at.core.clear_cache()
    at.core.add("c", [1, 2, 3, 4, 5, 6, 11], greedy(9, **ENDLESS))
    record = at.fail("move")
    (joined,) = (one for one in record.joined if one.request == "b")
    assert (joined.resumed, joined.swapped_tokens, joined.swapped_blocks) == (True, 0, 0)
    assert at.errors() == {"b": NOT_MOVED}
    assert record.host_blocks == 0
    assert at.core.counters.swapped_in_blocks == 0
    assert not len(at.core.pool.cache)
    at.finish()
    assert at.tokens["c"] == expected_output([1, 2, 3, 4, 5, 6, 11], greedy(9, **ENDLESS), 20)[0]


# Short of memory


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_with_little_memory_every_answer_is_what_it_would_be(batching, most: int):
    at = watched(Control(batching=batching))
    at.runner.most_tokens = most
    search = greedy(6, beam=BeamParams(3), **ENDLESS)
    at.core.add("a", list(range(9)), greedy(9, seed=3, prompt_logprobs=0, **ENDLESS), siblings=["a.1"])
    at.core.add("b", [1] * 6, greedy(9, **ENDLESS))
    at.core.add("c", [2] * 6, search, siblings=["c.1", "c.2"])
    at.finish()
    assert at.errors() == {}
    for index, name in enumerate(("a", "a.1")):
        sampling = seeded(greedy(9, seed=3, **ENDLESS), index)
        assert at.tokens[name] == expected_output(list(range(9)), sampling, 64)[0]
    at.answers([1] * 6, "b")
    assert at.ends["c"].beams == expected_beams([2] * 6, search, 64)
    assert "computed in" in at.records[0].fault
    assert [row.tokens for row in at.records[0].rows if row.kind == "prefill"] == [9, 6, 6]


def test_prompts_are_scored_whole_in_parts():
    at = watched()
    at.runner.most_tokens = 3
    at.core.add("a", list(range(9)), greedy(2, prompt_logprobs=0))
    outputs, _ = at.core.step()
    scores = [output for output in outputs if output.prompt_logprobs]
    assert [(output.prompt_start, len(output.prompt_logprobs)) for output in scores] == [(1, 8)]
    assert [token.logprob for token in scores[0].prompt_logprobs] == [-float(place) for place in range(1, 9)]


def test_a_context_that_does_not_fit_fails_alone():
    at = watched()
    at.core.add("long", list(range(12)), greedy(9))
    at.core.add("a", [1, 2, 3], greedy(5, **ENDLESS))
    at.runner.longest = 8
    record = at.step()
    assert "; 1 of its 2 rows did not fit" in record.fault
    assert [row.request for row in record.rows] == ["a"]
    assert list(at.errors()) == ["long"]
    assert "not enough memory" in str(at.errors()["long"])
    at.finish()
    assert at.core.counters.failed == 1
    at.answers([1, 2, 3], "a", max_tokens=5)


def test_a_beam_that_does_not_fit_ends_its_search_alone():
    at = watched()
    at.core.add("a", [1] * 6, greedy(9, beam=BeamParams(3), **ENDLESS), siblings=["a.1", "a.2"])
    at.core.add("b", [1, 2, 3], greedy(9, **ENDLESS))
    at.step()
    at.runner.longest = 6
    at.step()
    assert list(at.errors()) == ["a"]
    at.runner.longest = 64
    at.finish()
    at.answers([1, 2, 3], "b")


# Many


def test_an_engine_whose_steps_all_fail_says_so_when_it_is_asked_for_another():
    at = watched(Control(max_num_seqs=1))
    for index in range(MOST_FAILURES + 1):
        at.core.add(f"r{index}", [index], greedy(3))
    for _ in range(MOST_FAILURES):
        at.fail("compute")
    assert list(at.errors()) == [f"r{index}" for index in range(MOST_FAILURES)], "all of them are told before"
    with pytest.raises(StepsFail, match="3 steps in a row failed, the last because computing failed: RuntimeError"):
        at.core.step()


def test_failures_between_which_a_step_was_computed_are_not_counted_together():
    at = watched(Control(max_num_seqs=1))
    for index in range(4 * MOST_FAILURES):
        at.core.add(f"r{index}", [index], greedy(1))
    for _ in range(2 * MOST_FAILURES):
        at.fail("compute")
        at.step()
    assert at.core.counters.failed == 2 * MOST_FAILURES


def test_an_engine_without_memory_for_a_single_token_fails():
    at = watched(Control(max_num_seqs=1))
    at.runner.most_tokens = 0
    for index in range(MOST_FAILURES):
        at.core.add(f"r{index}", [index], greedy(1))
        at.step()
    with pytest.raises(StepsFail, match="not enough memory"):
        at.core.step()


def test_an_error_in_the_books_is_not_caught(monkeypatch):
    at = watched()
    at.core.add("a", [1], greedy(3))
    monkeypatch.setattr(at.core.scheduler.kv, "settle", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        at.core.step()


def test_logits_that_are_no_numbers_publish_nothing():
    at = watched()
    at.core.add("a", list(range(12)), greedy(9))
    at.runner.failing = {"a"}
    record = at.step()
    assert at.errors() == {"a": "no token"}
    assert record.pool == PoolTotals(free=32)
