"""Parallel sampling: one prefill, then each sibling on its own; and how families end."""

from __future__ import annotations

import pytest

from engine.block_pool import IllegalState
from engine.core import EngineCore, seeded
from engine.protocol import Control
from engine.sampling_params import BeamParams, SchedulingParams
from tests.engine.mirror import EOS, MirrorRunner, expected_output, greedy, mirror_core
from tests.engine.test_scheduler import collect, finish, step

ENDLESS = {"ignore_eos": True}
PROMPT = list(range(10))  # two full blocks of 4 and a tail of 2


def names(count: int) -> list[str]:
    return [f"c{index}" for index in range(count)]


def family(core: EngineCore, count: int, max_tokens: int = 6, seed: int | None = 3, prompt: list[int] = PROMPT) -> None:
    core.add("c0", prompt, greedy(max_tokens, seed=seed, **ENDLESS), siblings=names(count)[1:])


def answers(count: int, max_tokens: int = 6, seed: int | None = 3, limit: int = 64) -> dict[str, list[int]]:
    sampling = greedy(max_tokens, seed=seed, **ENDLESS)
    return {name: expected_output(PROMPT, seeded(sampling, i), limit)[0] for i, name in enumerate(names(count))}


def runner_of(core: EngineCore) -> MirrorRunner:
    assert isinstance(core.runner, MirrorRunner)
    return core.runner


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("budget", [512, 3])
def test_siblings_prefill_once_share_full_blocks_and_answer_as_separate_requests(prefix_cache, budget):
    # Traps 18 and 20.
    core = mirror_core(control=Control(prefix_cache=prefix_cache, max_num_batched_tokens=budget))
    family(core, 4)
    records, tokens, reasons = finish(core)
    assert tokens == answers(4)
    assert set(reasons.values()) == {"length"}
    assert core.counters.prefill_tokens == len(PROMPT)
    forked = next(record for record in records if any(row.kind == "fork" for row in record.rows))
    assert [(row.kind, row.tokens, row.sampled) for row in forked.rows][1:] == [("fork", 0, 1)] * 3
    assert (forked.sharing.physical_blocks, forked.sharing.logical_blocks) == (3, 12)
    after = records[records.index(forked) + 1]
    if budget == 512:
        assert len(after.copies) == 3, "the last one writes the tail in place"
        assert all(copy.tokens == 2 for copy in after.copies)
        assert (after.sharing.physical_blocks, after.sharing.logical_blocks) == (2 + 4, 12)
    assert core.counters.copied_blocks == 3
    assert [one.shared_tokens for record in records for one in record.joined if one.parent == "c0"] == [10] * 3
    assert core.pool.num_available == 32


@pytest.mark.parametrize("block_size", [1, 2, 5, 16])
def test_forks_at_and_beside_a_blocks_end(block_size):
    # Trap 20: 10 tokens end a block of 1, 2 and 5, and need no copy.
    core = mirror_core(80 // block_size, block_size, 20)
    family(core, 4)
    _, tokens, _ = finish(core)
    assert tokens == answers(4, limit=20)
    assert core.counters.copied_blocks == (3 if block_size == 16 else 0)


def test_equal_seeds_make_no_equal_answers_and_no_seed_stays_none():
    # Trap 18.
    core = mirror_core()
    family(core, 3)
    assert [core.scheduler.requests[name].sampling.seed for name in names(3)] == [3, 4, 5]
    family_without = mirror_core()
    family(family_without, 3, seed=None)
    assert [family_without.scheduler.requests[name].sampling.seed for name in names(3)] == [None] * 3
    assert seeded(greedy(1, seed=2**63 - 1), 1).seed == 0, "it wraps"


def test_siblings_end_unevenly_and_leave_the_rest_their_blocks():
    # Trap 18.
    seed = next(
        s
        for s in range(200)
        if len({len(expected_output(PROMPT, greedy(30, seed=s + i), 64)[0]) for i in range(3)}) == 3
    )
    core = mirror_core()
    core.add("c0", PROMPT, greedy(30, seed=seed), siblings=["c1", "c2"])
    _, tokens, reasons = finish(core)
    for index, name in enumerate(names(3)):
        assert (tokens[name], reasons[name]) == expected_output(PROMPT, greedy(30, seed=seed + index), 64)
        assert EOS in tokens[name][-1:] or reasons[name] == "length"
    assert core.pool.num_available == 32


def test_with_one_token_each_ends_as_it_is_forked():
    core = mirror_core()
    family(core, 4, max_tokens=1)
    outputs, record = core.step()
    assert record is not None
    assert {output.request: output.token_id for output in outputs} == {
        name: tokens[0] for name, tokens in answers(4, 1).items()
    }
    assert all(output.finished == "length" for output in outputs)
    assert {left.request for left in record.left} == set(names(4))
    assert not core.has_work
    assert core.pool.num_available == 32


# Endings of families


def test_aborting_the_parent_before_the_fork_ends_its_children():
    # Trap 18.
    core = mirror_core(control=Control(max_num_batched_tokens=4))
    family(core, 3)
    step(core)
    core.abort("c0")
    outputs, record = core.step()
    assert record is not None
    assert {(left.request, left.reason) for left in record.left} == {(name, "abort") for name in names(3)}
    assert {(output.request, output.finished) for output in outputs} == {("c1", "abort"), ("c2", "abort")}
    assert not core.has_work
    assert core.pool.num_available == 32


def test_aborting_the_parent_that_waits_ends_its_children():
    # Trap 18.
    core = mirror_core()
    family(core, 3)
    core.abort("c0")
    outputs, _ = core.step()
    assert {output.request for output in outputs} == {"c1", "c2"}
    assert not core.has_work


def test_aborting_the_parent_while_the_step_that_forks_runs_ends_its_children():
    # Traps 7 and 18.
    core = mirror_core()
    family(core, 3)
    runner_of(core).during = lambda: core.abort("c0")
    outputs, record = core.step()
    assert record is not None
    ends = [(output.request, output.finished) for output in outputs if output.finished]
    assert sorted(ends) == [(name, "abort") for name in names(3)], "each is told once"
    assert {left.request for left in record.left} == set(names(3))
    assert not core.has_work
    assert core.pool.num_available == 32


def test_aborting_the_parent_after_the_fork_leaves_the_others():
    core = mirror_core()
    family(core, 3)
    records, tokens, reasons = [], {}, {}
    for _ in range(2):
        outputs, record = core.step()
        records.append(record)
        for output in outputs:
            collect(output, tokens, reasons)
    core.abort("c0")
    _, later, reasons = finish(core)
    wanted = answers(3)
    for name in ("c1", "c2"):
        assert tokens[name] + later[name] == wanted[name]
    assert reasons == {"c1": "length", "c2": "length"}
    assert core.pool.num_available == 32


@pytest.mark.parametrize("during", [False, True])
def test_aborting_a_child_before_the_fork_leaves_the_others(during):
    core = mirror_core(control=Control(max_num_batched_tokens=16))
    family(core, 3)
    if during:
        runner_of(core).during = lambda: core.abort("c1")
    else:
        core.abort("c1")
    _, tokens, reasons = finish(core)
    wanted = answers(3)
    assert {name: tokens[name] for name in ("c0", "c2")} == {name: wanted[name] for name in ("c0", "c2")}
    assert {name: reason for name, reason in reasons.items() if name != "c1"} == {"c0": "length", "c2": "length"}
    assert core.pool.num_available == 32


def test_children_expire_after_the_fork_with_what_they_have():
    core = mirror_core()
    core.add("c0", PROMPT, greedy(50, seed=3, **ENDLESS), SchedulingParams(timeout=0.02), siblings=["c1", "c2"])
    first = {output.request: output.token_id for output in core.step()[0]}
    core.abort("c0")
    _, tokens, reasons = finish(core)
    assert reasons == {"c1": "deadline", "c2": "deadline"}
    for name, wanted in list(answers(3, 50).items())[1:]:
        got = [first[name], *tokens[name]]
        assert 3 < len(got) < 50
        assert got == wanted[: len(got)]
    assert core.pool.num_available == 32


def test_a_family_expires_together():
    core = mirror_core(control=Control(max_num_batched_tokens=1))
    core.add("c0", PROMPT, greedy(6), SchedulingParams(timeout=0.01), siblings=["c1"])
    _, tokens, reasons = finish(core)
    assert reasons == {"c0": "deadline", "c1": "deadline"}
    assert tokens == {}
    assert core.pool.num_available == 32


def test_a_leader_without_usable_logits_fails_and_the_others_go_on():
    core = mirror_core()
    family(core, 3)
    runner_of(core).failing = {"c0"}
    step(core)
    runner_of(core).failing = set()
    _, tokens, reasons = finish(core)
    wanted = answers(3)
    assert tokens == {name: wanted[name][1:] for name in ("c1", "c2")}
    assert reasons == {"c1": "length", "c2": "length"}
    assert core.counters.failed == 1
    assert core.pool.num_available == 32


def test_a_fork_without_usable_logits_fails_alone():
    core = mirror_core()
    family(core, 3)
    runner_of(core).failing = {"c2"}
    outputs, _ = core.step()
    assert [(o.request, o.error) for o in outputs if o.finished == "error"] == [("c2", "no token")]
    _, _, reasons = finish(core)
    assert reasons == {"c0": "length", "c1": "length"}


def test_a_search_whose_leader_fails_ends_as_a_whole():
    core = mirror_core()
    core.add("c0", PROMPT, greedy(6, beam=BeamParams(3), **ENDLESS), siblings=["c1", "c2"])
    step(core)
    runner_of(core).failing = {"c1"}
    outputs, record = core.step()
    assert record is not None
    assert {(left.request, left.reason) for left in record.left} == {(name, "error") for name in names(3)}
    assert [(output.request, output.finished) for output in outputs] == [("c0", "error")]
    assert not core.has_work


@pytest.mark.parametrize("preempt", ["recompute", "swap"])
def test_a_leader_preempted_in_its_prompt_forks_when_it_is_done(preempt):
    core = mirror_core(32, 4, 64, Control(preempt=preempt, max_num_batched_tokens=4), num_host_blocks=32)
    family(core, 3)
    step(core)
    step(core)
    core.scheduler.preempt(core.scheduler.running[0])
    records, tokens, _ = finish(core)
    assert tokens == answers(3)
    assert sum(len(record.preempted) for record in records) == 1
    assert [joined.resumed for record in records for joined in record.joined] == [True, False, False]


@pytest.mark.parametrize("preempt", ["recompute", "swap"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_sibling_preempted_after_the_fork_comes_back_as_it_was(preempt, which):
    # Trap 8.
    core = mirror_core(32, 4, 64, Control(preempt=preempt), num_host_blocks=32)
    family(core, 3)
    first = {output.request: output.token_id for output in core.step()[0]}
    core.scheduler.preempt(core.scheduler.requests[f"c{which}"])
    _, tokens, _ = finish(core)
    assert {name: [first[name], *rest] for name, rest in tokens.items()} == answers(3)


def test_a_pool_too_small_for_all_siblings_at_once_serves_them_one_after_another():
    core = mirror_core(9, 4, 36, Control(max_num_batched_tokens=64))
    family(core, 4, max_tokens=20)
    _, tokens, _ = finish(core)
    assert tokens == answers(4, 20, limit=36)
    assert core.counters.preemptions > 0
    assert core.pool.num_available == 9


def test_siblings_in_a_static_batch_are_held_until_it_ends():
    core = mirror_core(control=Control(batching="static"))
    core.add("c0", PROMPT, greedy(12, seed=3), siblings=names(3)[1:])
    records, tokens, reasons = finish(core)
    for index, name in enumerate(names(3)):
        assert (tokens[name], reasons[name]) == expected_output(PROMPT, greedy(12, seed=3 + index), 64)
    assert sum(len(record.joined) for record in records) == 3
    assert core.pool.num_available == 32


# Ids and sizes


def test_an_id_is_used_once_and_a_refused_family_leaves_nothing_behind():
    core = mirror_core()
    core.add("a", [1], greedy(2))
    for request, siblings in (("a", []), ("b", ["a"]), ("b", ["b"]), ("b", ["c", "c"])):
        with pytest.raises(ValueError, match="is in use"):
            core.add(request, [1], greedy(2), siblings=siblings)
    assert set(core.scheduler.requests) == {"a"}
    assert not core.scheduler.unforked
    assert len(core.scheduler.waiting) == 1
    finish(core)
    core.add("a", [1], greedy(2, **ENDLESS), siblings=["b"])
    assert set(finish(core)[2]) == {"a", "b"}


def test_a_search_that_could_never_run_at_once_is_refused_with_what_would_fit():
    # Trap 9.
    core = mirror_core(8, 4, 32)
    with pytest.raises(ValueError, match=r"4 beams may need 12 blocks.*pool has 8; at most 2 beams of 10 tokens fit"):
        core.add("a", [1] * 4, greedy(6, beam=BeamParams(4)), siblings=["b", "c", "d"])
    assert not core.has_work


# Branches


def test_a_branch_of_one_that_runs_shares_its_blocks_and_copies_the_tail():
    core = mirror_core()
    core.add("trunk", PROMPT, greedy(9, **ENDLESS))
    answer = [output.token_id for _ in range(4) for output in core.step()[0]]
    # 13 tokens are computed: 3 full blocks and 1 in a tail; the branch leaves after 12 and one of the tail.
    branch = [*PROMPT, *answer[:3], (answer[3] + 1) % 32, 7]
    core.add("branch", branch, greedy(5, **ENDLESS))
    record = step(core)
    (joined,) = record.joined
    assert (joined.cached_tokens, joined.copied_tokens, joined.decoded_tokens) == (13, 1, 5)
    assert [copy.tokens for copy in record.copies] == [1]
    trunk, branched = core.scheduler.running
    assert trunk.table[:3] == branched.table[:3]
    assert set(trunk.table[3:]).isdisjoint(branched.table[3:])
    _, tokens, _ = finish(core)
    assert tokens["branch"] == expected_output(branch, greedy(5, **ENDLESS), 64)[0][1:]


def test_a_fork_is_not_written_while_shared():
    # Trap 11.
    core = mirror_core()
    family(core, 2)
    step(core)
    with pytest.raises(IllegalState, match="it is shared"):
        core.pool.fill(core.scheduler.running[0].table[-1], 3)
