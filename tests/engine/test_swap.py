"""Preempted by swap or by recompute, chosen by cost: what comes back goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from engine.core import ControlError, EngineCore
from engine.messages import BeamOutput
from engine.plan import PlannedRow, StepPlan, StepResult
from engine.protocol import Control, Preempt, Record
from engine.sampling_params import BeamParams, SchedulingParams
from tests.engine.mirror import MirrorRunner, expected_beams, expected_output, greedy, mirror_core
from tests.engine.test_scheduler import finish, step

ENDLESS = {"ignore_eos": True}
SWAP = Control(preempt="swap")


def swapping_core(num_blocks: int = 32, host: int = 32, control: Control = SWAP, limit: int = 64) -> EngineCore:
    return mirror_core(num_blocks, 4, limit, control, host)


def preempt(core: EngineCore, name: str) -> Record:
    """Preempt one that runs, and plan the step in which it resumes."""
    core.scheduler.preempt(core.scheduler.requests[name])
    return step(core)


def run_beams(core: EngineCore) -> dict[str, tuple[BeamOutput, ...]]:
    beams = {}
    while core.has_work:
        beams.update({output.request: output.beams for output in core.step()[0] if output.beams})
    return beams


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("how", ["recompute", "swap", "auto"])
def test_a_resumed_output_is_that_of_an_undisturbed_run(how: Preempt, prefix_cache: bool):
    # Trap 8.
    control = Control(preempt=how, max_num_batched_tokens=16, prefix_cache=prefix_cache)
    core = swapping_core(11, control=control, limit=40)
    prompts = {f"r{i}": [i] * (3 + i) for i in range(8)}
    for name, prompt in prompts.items():
        core.add(name, prompt, greedy(20, seed=7, **ENDLESS))
    _, tokens, _ = finish(core)
    counters = core.counters
    for name, prompt in prompts.items():
        assert tokens[name] == expected_output(prompt, greedy(20, seed=7, **ENDLESS), 40)[0]
    assert counters.preemptions > 0
    if how == "auto":  # the mirror's steps take no time: swapping is tried once, and is no cheaper
        assert counters.swap_preemptions == 1 < counters.preemptions
    else:
        assert counters.swap_preemptions == (counters.preemptions if how == "swap" else 0)
    assert (counters.recomputed_tokens > 0) is (how != "swap")
    assert (core.scheduler.kv.host.num_used, core.pool.num_available) == (0, 11)


def test_what_is_swapped_is_told_and_is_not_computed_again():
    core = swapping_core(control=Control(preempt="swap", prefix_cache=False))
    core.add("a", list(range(10)), greedy(9, **ENDLESS))
    step(core)
    step(core)  # 11 tokens are computed, in 3 blocks
    record = preempt(core, "a")
    (lost,) = record.preempted
    assert (lost.by, lost.lost_tokens, lost.swapped_blocks) == ("swap", 0, 3)
    (joined,) = record.joined
    assert (joined.resumed, joined.cached_tokens, joined.swapped_tokens, joined.swapped_blocks) == (True, 0, 11, 3)
    assert [(row.kind, row.tokens, row.context) for row in record.rows] == [("decode", 1, 12)]
    assert core.counters.prefill_tokens == 10
    assert (core.counters.swapped_out_blocks, core.counters.swapped_in_blocks) == (3, 3)


def test_what_the_cache_still_has_is_not_moved_back():
    core = swapping_core()
    core.add("a", list(range(10)), greedy(9, **ENDLESS))
    step(core)
    (joined,) = preempt(core, "a").joined
    assert (joined.cached_tokens, joined.swapped_tokens, joined.swapped_blocks) == (8, 2, 1)


def test_a_prompt_preempted_in_the_middle_goes_on_where_it_was():
    core = swapping_core(control=Control(preempt="swap", prefix_cache=False, max_num_batched_tokens=6))
    core.add("a", list(range(20)), greedy(3, **ENDLESS))
    step(core)  # 4 tokens, to a block's end
    record = preempt(core, "a")
    assert [(row.kind, row.tokens, row.context) for row in record.rows] == [("prefill", 4, 8)]
    _, tokens, _ = finish(core)
    assert tokens["a"] == expected_output(list(range(20)), greedy(3, **ENDLESS), 64)[0]


def test_where_the_swap_space_is_too_small_it_is_computed_again():
    core = swapping_core(host=2)
    core.add("large", list(range(10)), greedy(9, **ENDLESS))
    core.add("small", [30] * 5, greedy(9, **ENDLESS))
    step(core)
    core.scheduler.preempt(core.scheduler.requests["large"])  # 3 blocks
    core.scheduler.preempt(core.scheduler.requests["small"])  # 2 blocks
    record = step(core)
    assert [(p.request, p.by, p.lost_tokens) for p in record.preempted] == [
        ("large", "recompute", 10),
        ("small", "swap", 0),
    ]
    _, tokens, _ = finish(core)
    assert tokens["large"] == expected_output(list(range(10)), greedy(9, **ENDLESS), 64)[0][2:]
    assert tokens["small"] == expected_output([30] * 5, greedy(9, **ENDLESS), 64)[0][2:]
    assert core.scheduler.kv.host.num_used == 0


def test_what_siblings_share_takes_its_swap_space_once():
    core = swapping_core(host=3)
    core.add("a", list(range(10)), greedy(9, **ENDLESS), siblings=["b"])
    first = {output.request: output.token_id for output in core.step()[0]}
    for name in "ab":
        core.scheduler.preempt(core.scheduler.requests[name])
    assert [(p.request, p.by, p.swapped_blocks) for p in core.scheduler.events.preempted] == [
        ("a", "swap", 3),
        ("b", "swap", 0),
    ]
    _, tokens, _ = finish(core)
    for name in "ab":
        assert [first[name], *tokens[name]] == expected_output(list(range(10)), greedy(9, **ENDLESS), 64)[0]


@pytest.mark.parametrize("found", [True, False])
def test_one_that_opts_out_of_the_cache_leaves_nothing_there_when_it_is_back(found):
    # Trap 4.
    core = swapping_core()
    core.add("a", [1] * 9, greedy(9, **ENDLESS), SchedulingParams(prefix_cache=found))
    step(core)
    core.clear_cache()
    preempt(core, "a")
    core.add("b", [1] * 9, greedy(1))
    assert step(core).joined[0].cached_tokens == (8 if found else 0)


def test_without_swap_space_swap_cannot_be_chosen_and_auto_computes_again():
    core = swapping_core(host=0, control=Control(preempt="auto"))
    with pytest.raises(ControlError, match="preempt cannot be 'swap'"):
        core.set_control(SWAP)
    core.add("a", list(range(10)), greedy(9, **ENDLESS))
    step(core)
    (lost,) = preempt(core, "a").preempted
    assert (lost.by, lost.swap_seconds) == ("recompute", None)


class TimedRunner(MirrorRunner):
    """A token takes `token` seconds to compute, a block `block` seconds to move."""

    token, block = 0.001, 0.001

    def move(self, plan: StepPlan) -> float:
        super().move(plan)
        return plan.num_moves * self.block

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        return msgspec.structs.replace(super().compute(rows), forward=sum(row.count for row in rows) * self.token)


@pytest.mark.parametrize(
    ("token", "block", "chosen"),
    [
        (0.001, 0.001, "swap"),  # 20 tokens: 20 ms; 5 blocks there and back: 10 ms
        (0.001, 0.0019, "swap"),  # 19 ms
        (0.001, 0.0021, "recompute"),  # 21 ms
        (0.0001, 0.001, "recompute"),
    ],
)
def test_auto_chooses_by_what_either_was_measured_to_cost(token, block, chosen):
    core = swapping_core(control=Control(preempt="auto", prefix_cache=False))
    core.runner = runner = TimedRunner(32, 4, 32)
    runner.token, runner.block = token, block
    core.add("a", list(range(20)), greedy(9, **ENDLESS))
    step(core)
    first = preempt(core, "a").preempted[0]
    assert (first.by, first.swap_seconds) == ("swap", None), "tried once, to be measured"
    core.abort("a")
    core.add("b", list(range(20)), greedy(9, **ENDLESS))
    step(core)
    second = preempt(core, "b").preempted[0]
    assert second.by == chosen
    assert second.recompute_seconds == pytest.approx(20 * token)
    assert second.swap_seconds == pytest.approx(2 * 5 * block)


def test_aborting_a_swapped_request_frees_its_host_blocks():
    core = swapping_core(12, control=Control(preempt="swap", prefix_cache=False), limit=48)
    core.add("a", [1] * 10, greedy(30, **ENDLESS))
    step(core)
    core.add("b", [2] * 8, greedy(30, **ENDLESS))
    while core.scheduler.kv.host.num_used == 0:
        step(core)
    assert core.scheduler.requests["b"].num_swapped > 0
    core.abort("b")
    assert core.scheduler.kv.host.num_used == 0
    record = step(core)
    assert record.host_blocks == 0
    assert [left.request for left in record.left] == ["b"]


def test_aborted_in_the_step_that_brings_it_back_it_is_freed_once():
    # Trap 7.
    core = swapping_core(control=Control(preempt="swap", prefix_cache=False))
    core.add("a", [1] * 10, greedy(30, **ENDLESS))
    step(core)
    runner = core.runner
    assert isinstance(runner, MirrorRunner)
    runner.during = lambda: core.abort("a")
    record = preempt(core, "a")
    assert [left.reason for left in record.left] == ["abort"]
    assert (core.scheduler.kv.host.num_used, core.pool.num_available) == (0, 32)


def test_host_blocks_are_in_use_until_the_step_that_reads_them_is_done():
    # Trap 6.
    core = swapping_core(control=Control(preempt="swap", prefix_cache=False))
    core.add("a", [1] * 10, greedy(30, **ENDLESS))
    step(core)
    runner, used = core.runner, []
    assert isinstance(runner, MirrorRunner)
    runner.during = lambda: used.append(core.scheduler.kv.host.num_used)
    record = preempt(core, "a")
    assert used == [3]
    assert record.host_blocks == 0


def test_a_swapped_request_that_waits_is_in_the_snapshot():
    core = swapping_core(12, control=Control(preempt="swap", prefix_cache=False), limit=48)
    core.add("a", [1] * 10, greedy(30, **ENDLESS))
    step(core)
    core.add("b", [2] * 8, greedy(30, **ENDLESS))
    while core.scheduler.kv.host.num_used == 0:
        record = step(core)
    state = next(state for state in core.snapshot().requests if state.request == "b")
    blocks = -(-state.swapped_tokens // 4)
    assert (state.status, state.computed_tokens, state.table) == ("waiting", 0, ())
    assert core.snapshot().host_blocks == record.host_blocks == blocks > 0


@pytest.mark.parametrize("width", [2, 4])
def test_beams_are_swapped_together_and_share_again_when_they_are_back(width):
    core = swapping_core(48, 48, Control(preempt="swap", prefix_cache=False))
    sampling = greedy(12, beam=BeamParams(width), **ENDLESS)
    core.add("b", [1] * 14, sampling, siblings=[f"b.{i}" for i in range(1, width)])
    for _ in range(4):
        step(core)
    before = {block for request in core.scheduler.running for block in request.table}
    assert len(before) < sum(len(request.table) for request in core.scheduler.running)
    core.scheduler.preempt(core.scheduler.running[-1])
    assert core.scheduler.running == []
    record = step(core)
    assert [p.by for p in record.preempted] == ["swap"] * width
    assert sum(p.swapped_blocks for p in record.preempted) == len(before), "what they share is moved once"
    assert sum(j.swapped_blocks for j in record.joined) == len(before)
    assert len({row.request for row in record.rows}) == width, "and all go on in that step"
    assert record.sharing.saved_blocks > 0
    assert run_beams(core) == {"b": expected_beams([1] * 14, sampling, 64)}
    assert (core.scheduler.kv.host.num_used, core.pool.num_available) == (0, 48)


@pytest.mark.parametrize("how", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("blocks", [12, 14, 18])
def test_searches_that_push_each_other_out_find_what_each_would_alone(how: Preempt, blocks: int):
    # Traps 8 and 16.
    core = swapping_core(blocks, 64, Control(preempt=how, max_num_batched_tokens=16), limit=24)
    wanted = {}
    for index in range(4):
        sampling = greedy(14, beam=BeamParams(3), **ENDLESS)
        core.add(f"s{index}", [index] * 2, sampling, siblings=[f"s{index}.1", f"s{index}.2"])
        wanted[f"s{index}"] = expected_beams([index] * 2, sampling, 24)
    assert run_beams(core) == wanted
    assert core.counters.preemptions > 0
    assert (core.scheduler.kv.host.num_used, core.pool.num_available) == (0, blocks)


def test_a_beam_that_resumes_does_not_take_the_block_another_beam_has_found():
    core = mirror_core(16, 2, 32, Control(preempt="swap", scheduling_policy="priority"), 100)
    search = greedy(12, beam=BeamParams(2), **ENDLESS)
    core.add("b", [0] * 4, search, SchedulingParams(priority=1), ["b.1"])
    for _ in range(5):
        core.step()
    core.add("other", [29] * 24, greedy(1))  # leaves nothing but cached blocks
    core.scheduler.preempt(core.scheduler.running[0])
    assert run_beams(core) == {"b": expected_beams([0] * 4, search, 32)}
    assert core.pool.num_available == 16


def test_aborting_a_swapped_search_frees_the_host_blocks_of_all_beams():
    core = swapping_core(16, 48, Control(preempt="swap", prefix_cache=False))
    core.add("b", [1] * 6, greedy(12, beam=BeamParams(3), **ENDLESS), siblings=["b.1", "b.2"])
    step(core)
    step(core)
    core.scheduler.preempt(core.scheduler.running[0])
    core.scheduler.kv.settle()
    assert core.scheduler.kv.host.num_used > 0
    core.abort("b.1")
    assert core.scheduler.kv.host.num_used == 0
    assert not core.has_work


def test_a_swapped_request_may_come_back_into_a_reservation():
    core = swapping_core(16, 16, limit=24)
    core.add("a", [1] * 6, greedy(12, **ENDLESS))
    for _ in range(3):
        step(core)
    core.set_control(Control(preempt="swap", allocation="reserved"))
    record = preempt(core, "a")
    (joined,) = record.joined
    assert (joined.allocation, joined.swapped_tokens, joined.swapped_blocks) == ("reserved", 8, 2)
    assert record.rows[0].kind == "decode"
    _, tokens, _ = finish(core)
    assert tokens["a"] == expected_output([1] * 6, greedy(12, **ENDLESS), 24)[0][4:]


# Prompts that are scored


def scored_places(core: EngineCore, name: str) -> list[int]:
    places: list[int] = []
    while core.has_work:
        for output in core.step()[0]:
            if output.request == name and output.prompt_logprobs:
                assert output.prompt_start == (places[-1] + 1 if places else 1)
                places += range(output.prompt_start, output.prompt_start + len(output.prompt_logprobs))
    return places


@pytest.mark.parametrize("budget", [512, 5])
def test_a_prompt_to_be_scored_is_computed_whole_though_its_prefix_is_cached(budget):
    # Trap 17.
    core = swapping_core(control=Control(max_num_batched_tokens=budget))
    prompt = list(range(12))
    core.add("warm", prompt, greedy(1))
    finish(core)
    core.add("scored", prompt, greedy(2, prompt_logprobs=0, **ENDLESS))
    before = core.counters.prefill_tokens
    assert scored_places(core, "scored") == list(range(1, 12))
    assert core.counters.prefill_tokens - before == 12
    core.add("later", prompt, greedy(1))
    assert step(core).joined[0].cached_tokens == 11, "others still find it"


@pytest.mark.parametrize("how", ["recompute", "swap"])
def test_a_scored_prompt_that_is_preempted_is_scored_to_its_end(how: Preempt):
    # Trap 17.
    core = swapping_core(control=Control(max_num_batched_tokens=4, preempt=how))
    core.add("scored", list(range(12)), greedy(2, prompt_logprobs=0, **ENDLESS))
    first, _ = core.step()
    assert [output.prompt_start for output in first] == [1]
    core.scheduler.preempt(core.scheduler.running[0])
    places = set(range(1, 1 + len(first[0].prompt_logprobs)))
    while core.has_work:
        for output in core.step()[0]:
            places.update(range(output.prompt_start, output.prompt_start + len(output.prompt_logprobs)))
    assert places == set(range(1, 12))
    assert core.counters.prefill_tokens == (12 if how == "swap" else 16)
