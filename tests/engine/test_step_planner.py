"""Who is in a step, in what order, how much of it, and what is said of those that are not."""

from __future__ import annotations

import msgspec
import pytest

from engine.protocol import Control, Record, Wait
from engine.sampling_params import BeamParams, SchedulingParams
from engine.step_planner import LOOK_AHEAD, MAX_SKIPS
from tests.engine.mirror import MirrorRunner, expected_beams, expected_output, greedy, mirror_core
from tests.engine.test_scheduler import finish, step

ENDLESS = {"ignore_eos": True}


def rows(record: Record) -> dict[str, int]:
    return {row.request: row.tokens for row in record.rows}


def joined(records: list[Record]) -> list[str]:
    return [one.request for record in records for one in record.joined]


def head(record: Record) -> Wait:
    assert record.queue.head is not None
    return record.queue.head


def urgent(priority: int) -> SchedulingParams:
    return SchedulingParams(priority=priority)


# Policies


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fcfs", ["long", "short", "middle", "late"]),
        ("priority", ["middle", "long", "late", "short"]),
        ("shortest_prefill", ["short", "late", "middle", "long"]),
    ],
)
def test_those_that_wait_join_in_the_order_of_the_policy(policy, order):
    core = mirror_core(control=Control(scheduling_policy=policy, max_num_seqs=1))
    core.add("long", [1] * 20, greedy(1), urgent(1))
    core.add("short", [2] * 3, greedy(1), urgent(2))
    core.add("middle", [3] * 9, greedy(1), urgent(0))
    core.add("late", [4] * 3, greedy(1), urgent(1))
    assert joined(finish(core)[0]) == order


@pytest.mark.parametrize(("max_wait", "served"), [(0.05, True), (10.0, False)])
def test_shortest_prefill_keeps_nobody_waiting_past_the_bound(max_wait, served):
    # Trap 10: short ones that keep coming would starve a long one.
    control = Control(scheduling_policy="shortest_prefill", max_num_seqs=1, max_wait=max_wait)
    core = mirror_core(control=control)
    core.add("busy", [9], greedy(2, **ENDLESS))
    core.add("long", [1] * 30, greedy(1))
    order = []
    for index in range(60):  # the clock moves by some milliseconds a step
        core.add(f"short{index}", [2, index % 32], greedy(1))
        order += joined([step(core)])
    assert ("long" in order) is served
    assert order[:2] == ["busy", "short0"]
    assert "long" in [*order, *joined(finish(core)[0])]


def test_a_policy_is_switched_while_some_wait_and_some_run():
    core = mirror_core(control=Control(max_num_seqs=2))
    core.add("first", [1] * 4, greedy(6, **ENDLESS), urgent(3))
    core.add("second", [2] * 4, greedy(6, **ENDLESS), urgent(1))
    step(core)
    for name, length, priority in (("a", 9, 2), ("b", 3, 5), ("c", 6, 0)):
        core.add(name, [3] * length, greedy(1), urgent(priority))
    core.set_control(Control(max_num_seqs=2, scheduling_policy="priority"))
    assert [request.id for request in core.scheduler.waiting] == ["c", "a", "b"]
    assert [request.id for request in core.scheduler.running] == ["second", "first"]
    core.set_control(Control(max_num_seqs=2, scheduling_policy="shortest_prefill"))
    assert [request.id for request in core.scheduler.waiting] == ["b", "c", "a"]
    assert [request.id for request in core.scheduler.running] == ["first", "second"], "by arrival"
    records, tokens, _ = finish(core)
    assert joined(records) == ["b", "c", "a"]
    assert tokens["first"] == expected_output([1] * 4, greedy(6, **ENDLESS), 64)[0][1:]


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", "late"), ("priority", "lowly")])
def test_who_gives_way_when_memory_runs_out(policy, victim):
    control = Control(scheduling_policy=policy, prefix_cache=False)
    core = mirror_core(9, 4, 32, control)
    core.add("lowly", [1] * 4, greedy(20, **ENDLESS), urgent(9))
    step(core)
    core.add("middle", [2] * 4, greedy(20, **ENDLESS), urgent(5))
    step(core)
    core.add("late", [3] * 4, greedy(20, **ENDLESS), urgent(0))
    records, tokens, _ = finish(core)
    assert next(p.request for r in records for p in r.preempted) == victim
    for name, token in (("middle", 2), ("late", 3)):
        assert tokens[name][-19:] == expected_output([token] * 4, greedy(20, **ENDLESS), 32)[0][-19:]


# The budget


def test_a_chunk_is_capped_hard_by_its_own_setting():
    core = mirror_core(control=Control(max_num_batched_tokens=32, max_prefill_chunk=6, prefix_cache=False))
    core.add("a", [1] * 20, greedy(1))
    # Chunks end with a block where they can: 4, 8, 12, 16, 20.
    assert [row.tokens for record in finish(core)[0] for row in record.rows] == [4, 4, 4, 4, 4]
    core.set_control(Control(max_num_batched_tokens=32, max_prefill_chunk=3, prefix_cache=False))
    core.add("b", [2] * 8, greedy(1))
    assert [row.tokens for record in finish(core)[0] for row in record.rows] == [3, 1, 3, 1]


def test_half_of_the_budget_is_the_cap_where_others_can_use_the_rest_and_else_all():
    core = mirror_core(num_blocks=64, control=Control(max_num_batched_tokens=16, prefix_cache=False))
    core.add("a", [1] * 40, greedy(1))
    assert rows(step(core)) == {"a": 16}
    core.add("b", [2] * 40, greedy(1))
    assert rows(step(core)) == {"a": 8, "b": 8}
    core.add("c", [3] * 2, greedy(1))
    assert rows(step(core)) == {"a": 8, "b": 8}, "no budget is left for the third"
    assert rows(step(core)) == {"a": 8, "b": 8}
    assert rows(step(core)) == {"b": 12, "c": 2}, "what is left goes back to the long one, up to a block's end"


def test_the_budget_is_never_passed_by_chunked_prefills_and_decodes():
    core = mirror_core(control=Control(max_num_batched_tokens=5, prefix_cache=False))
    for name in "abcdefg":
        core.add(name, [ord(name) % 32] * 9, greedy(6, **ENDLESS))
    records, tokens, _ = finish(core)
    assert max(sum(rows(record).values()) for record in records) == 5
    assert tokens["g"] == expected_output([ord("g") % 32] * 9, greedy(6, **ENDLESS), 64)[0]


def test_rows_shrink_only_as_requests_end():
    core = mirror_core(control=Control(max_num_seqs=4))
    for name in "abcd":
        core.add(name, [1], greedy(4, **ENDLESS))
    step(core)
    core.set_control(Control(max_num_seqs=1))
    core.add("e", [2], greedy(1))
    records = finish(core)[0]
    assert len(records[0].rows) == 4, "what runs goes on"
    assert head(records[0]).cause == "rows"
    assert joined(records) == ["e"]


# Families


def test_a_group_takes_its_rows_and_one_too_large_runs_alone():
    core = mirror_core(control=Control(max_num_seqs=4))
    core.add("pair", [1] * 5, greedy(3, **ENDLESS), siblings=["pair.1"])
    core.add("three", [2] * 5, greedy(3, **ENDLESS), siblings=["three.1", "three.2"])
    core.add("small", [3] * 5, greedy(3, **ENDLESS))
    core.add("six", [4] * 5, greedy(3, **ENDLESS), siblings=[f"six.{i}" for i in range(1, 6)])
    records, _, reasons = finish(core)
    assert set(joined(records[:1])) == {"pair", "pair.1"}
    assert (head(records[0]).request, head(records[0]).cause) == ("three", "rows")
    running = [{row.request.split(".")[0] for row in record.rows} for record in records]
    assert {frozenset(names) for names in running if "six" in names} == {frozenset({"six"})}
    assert {"three", "small"} in running
    assert len(reasons) == 12


def test_beams_are_computed_all_or_none_and_may_pass_the_budget_with_its_last_tokens():
    core = mirror_core(control=Control(max_num_batched_tokens=5, prefix_cache=False))
    sampling = greedy(8, beam=BeamParams(4), **ENDLESS)
    core.add("first", [1] * 2, greedy(12, **ENDLESS))
    core.add("second", [3] * 2, greedy(12, **ENDLESS))
    core.add("beam", [2] * 3, sampling, siblings=[f"beam.{i}" for i in (1, 2, 3)])
    beams, sizes, tokens = None, set(), set()
    while core.has_work:
        outputs, record = core.step()
        assert record is not None
        sizes.add(sum(name.startswith("beam") for name in rows(record)))
        tokens.add(sum(rows(record).values()))
        beams = next((output.beams for output in outputs if output.beams), beams)
    assert sizes == {0, 1, 4}
    assert max(tokens) == 2 + 4
    assert beams == expected_beams([2] * 3, sampling, 64)


def test_beams_go_on_with_a_budget_of_one():
    core = mirror_core(control=Control(max_num_batched_tokens=1, prefix_cache=False))
    sampling = greedy(4, beam=BeamParams(3), **ENDLESS)
    core.add("beam", [1] * 3, sampling, siblings=["beam.1", "beam.2"])
    core.add("late", [2] * 3, greedy(2, **ENDLESS))
    records, tokens, reasons = finish(core)
    together = [rows(record) for record in records if "beam.1" in rows(record)]
    # The first is the fork: its parent computes the prompt's last token, the others nothing.
    assert [sorted(step.values()) for step in together] == [[0, 0, 1], *[[1, 1, 1]] * 3]
    assert reasons == {"beam": "length", "late": "length"}
    assert tokens["late"] == expected_output([2] * 3, greedy(2, **ENDLESS), 64)[0]


def test_those_before_beams_do_not_hold_them_up_for_good():
    core = mirror_core(num_blocks=64, control=Control(max_num_batched_tokens=4, prefix_cache=False))
    for name in "abc":
        core.add(name, [1] * 2, greedy(40, **ENDLESS))
    core.add("beam", [2] * 3, greedy(5, beam=BeamParams(3), **ENDLESS), siblings=["beam.1", "beam.2"])
    records, _, _ = finish(core)
    ended = {left.request: record.seq for record in records for left in record.left}
    assert ended["beam"] < ended["a"]


def test_reserved_siblings_run_on_their_own():
    core = mirror_core(16, 4, 16, Control(allocation="reserved"))
    sampling = greedy(4, seed=5, **ENDLESS)
    core.add("a", [1, 2, 3], sampling, siblings=["b", "c"])
    record = step(core)
    assert sorted(joined([record])) == ["a", "b", "c"]
    assert all(one.parent is None and one.allocation == "reserved" for one in record.joined)
    assert [row.kind for row in record.rows] == ["prefill"] * 3
    tables = [set(request.table) for request in core.scheduler.running]
    assert [len(table) for table in tables] == [4, 4, 4]
    assert len(set().union(*tables)) == 12
    _, tokens, _ = finish(core)
    for index, name in enumerate("abc"):
        seeded = greedy(4, seed=5 + index, **ENDLESS)
        assert tokens[name] == expected_output([1, 2, 3], seeded, 16)[0][1:]


def test_beams_are_paged_where_others_are_reserved():
    core = mirror_core(16, 4, 16, Control(allocation="reserved"))
    core.add("beam", [1, 2, 3], greedy(4, beam=BeamParams(2), **ENDLESS), siblings=["beam.1"])
    core.add("plain", [1, 2, 3], greedy(4, **ENDLESS))
    assert {one.request: one.allocation for one in step(core).joined} == {
        "beam": "paged",
        "beam.1": "paged",
        "plain": "reserved",
    }


@pytest.mark.parametrize(("fit", "admitted"), [("first", ["y"]), ("best", ["y", "z"])])
def test_the_best_fit_keeps_a_long_hole_whole_and_admits_one_more(fit, admitted):
    paged = Control(prefix_cache=False)
    core = mirror_core(11, 4, 8, paged)
    for name, blocks in (("p", 1), ("q", 1), ("r", 2), ("s", 1), ("t", 2)):  # 0, 1, 2-3, 4, 5-6
        core.add(name, [1] * (4 * blocks - 3), greedy(7, **ENDLESS))
    step(core)
    core.set_control(msgspec.structs.replace(paged, allocation="reserved", reserved_fit=fit))
    core.add("d", [2], greedy(7, **ENDLESS))  # 7-8
    core.add("e", [2], greedy(7, **ENDLESS))  # 9-10
    assert joined([step(core)]) == ["d", "e"]
    for name in "qrt":
        core.abort(name)
    core.add("x", [3], greedy(7, **ENDLESS))  # into 1-2 of the hole 1-3, or into the hole 5-6
    step(core)
    core.abort("p")
    core.add("y", [4], greedy(7, **ENDLESS))
    core.add("z", [4], greedy(7, **ENDLESS))
    record = step(core)
    assert joined([record]) == admitted
    wait = Wait("z", "hole", needed_blocks=2, available_blocks=2, longest_hole=1)
    assert record.queue.head == (None if fit == "best" else wait)


# Passing over, and why one waits


def test_at_most_a_look_ahead_of_those_that_do_not_fit_is_passed():
    core = mirror_core(num_blocks=16, max_model_len=64, control=Control(prefix_cache=False))
    core.add("big", [1] * 30, greedy(20, **ENDLESS))
    step(core)
    for index in range(LOOK_AHEAD):
        core.add(f"large{index}", [2] * 32, greedy(2))
    core.add("small", [3], greedy(1))
    assert step(core).joined == ()
    core.abort("large0")
    assert joined([step(core)]) == ["small"], "one fewer is before it"


def test_no_two_requests_pass_one_more_often_than_the_bound():
    # Trap 10.
    core = mirror_core(num_blocks=16, max_model_len=64, control=Control(prefix_cache=False))
    core.add("big", [1] * 30, greedy(30, **ENDLESS))
    step(core)
    core.add("head", [2] * 32, greedy(2))
    for index in range(MAX_SKIPS + 5):
        core.add(f"small{index}", [3], greedy(1))
        step(core)
    (head_request,) = [request for request in core.scheduler.waiting if request.id == "head"]
    assert head_request.skipped == MAX_SKIPS


def test_an_idle_queue_has_no_head():
    core = mirror_core()
    core.add("a", [1], greedy(2, **ENDLESS))
    assert step(core).queue.head is None


def test_waiting_for_rows_and_for_tokens():
    core = mirror_core(control=Control(max_num_seqs=1))
    core.add("a", [1], greedy(5, **ENDLESS))
    core.add("b", [2], greedy(5, **ENDLESS))
    assert head(step(core)) == Wait("b", "rows")
    core.set_control(Control(max_num_batched_tokens=1))
    assert head(step(core)) == Wait("b", "tokens")
    core.set_control(Control(max_num_batched_tokens=4, chunked_prefill=False, prefix_cache=False))
    core.add("c", [3] * 9, greedy(1))
    record = step(core)
    assert joined([record]) == ["b"]
    assert head(record) == Wait("c", "tokens"), "it runs whole, as the only prefill"


def test_waiting_for_blocks_tells_what_is_wanted_with_some_to_spare():
    core = mirror_core(10, 4, 40, Control(prefix_cache=False))
    core.add("a", [1] * 16, greedy(9, **ENDLESS))
    core.add("b", [2] * 4, greedy(9, **ENDLESS))
    core.add("c", [3] * 17, greedy(9, **ENDLESS))
    record = step(core)
    assert joined([record]) == ["a", "b"]
    # 5 blocks for the prompt and one to spare for each of the two that run; 10 - 4 - 1 can be had.
    assert head(record) == Wait("c", "blocks", needed_blocks=7, available_blocks=5)


def test_waiting_for_blocks_that_those_that_run_want_themselves():
    core = mirror_core(5, 4, 20, Control(prefix_cache=False))
    core.add("a", [1] * 16, greedy(4, **ENDLESS))
    core.add("b", [2] * 4, greedy(1))
    assert head(step(core)) == Wait("b", "blocks", needed_blocks=2, available_blocks=1)
    assert head(step(core)) == Wait("b", "blocks", needed_blocks=2, available_blocks=0)


def test_waiting_for_a_hole_tells_the_longest():
    core = mirror_core(11, 4, 16, Control(allocation="reserved"))
    for name in "abc":
        core.add(name, [1], greedy(2 if name == "a" else 9, **ENDLESS))
    assert head(step(core)) == Wait("c", "hole", needed_blocks=4, available_blocks=3, longest_hole=3)
    core.set_control(Control(allocation="paged"))
    core.add("d", [1] * 9, greedy(9, **ENDLESS))
    step(core)
    assert [request.table for request in core.scheduler.running] == [[4], [5], [6, 7, 1]]
    core.set_control(Control(allocation="reserved"))
    core.add("e", [1], greedy(1))
    # Left are 0, 2-3 and 8-10.
    assert head(step(core)) == Wait("e", "hole", needed_blocks=4, available_blocks=6, longest_hole=3)


def test_waiting_for_a_static_batch():
    core = mirror_core(control=Control(batching="static"))
    core.add("a", [1], greedy(3, **ENDLESS))
    step(core)
    core.add("b", [1], greedy(3, **ENDLESS))
    assert head(step(core)) == Wait("b", "batch")


def test_waiting_for_a_prefix_and_for_a_parent():
    core = mirror_core(control=Control(max_num_batched_tokens=8))
    core.add("a", list(range(20)), greedy(3, **ENDLESS), siblings=["a.1"])
    assert head(step(core)) == Wait("a.1", "parent")
    core.add("b", [*range(19), 30], greedy(3, **ENDLESS))
    assert head(step(core)) == Wait("b", "prefix")
    record = step(core)
    assert {one.request for one in record.joined} >= {"a.1"}


def test_swapped_requests_that_wait_hold_no_rows_of_the_batch():
    core = mirror_core(16, 4, 32, Control(preempt="swap", max_num_seqs=1), num_host_blocks=16)
    core.add("a", [1] * 6, greedy(6, **ENDLESS))
    step(core)
    core.scheduler.preempt(core.scheduler.running[0])
    core.add("b", [2] * 6, greedy(2, **ENDLESS))
    record = step(core)
    assert joined([record]) == ["a"], "it arrived first"
    assert head(record) == Wait("b", "rows")


def test_a_static_batch_takes_the_first_in_turn_that_fit_together():
    core = mirror_core(8, 4, 32, Control(batching="static", prefix_cache=False))
    core.add("a", [1] * 8, greedy(2, **ENDLESS))
    core.add("b", [2] * 24, greedy(2, **ENDLESS))
    core.add("c", [3] * 9, greedy(2, **ENDLESS))
    record = step(core)
    assert joined([record]) == ["a"], "c is not let past b"
    assert head(record).request == "b"
    assert [names for names in (joined([r]) for r in finish(core)[0]) if names] == [["b"], ["c"]]


def test_a_plan_is_made_and_committed_in_turn():
    core = mirror_core()
    core.add("a", [1], greedy(3, **ENDLESS))
    plan = core.scheduler.plan(0.0)
    with pytest.raises(RuntimeError, match="before the last one was committed"):
        core.scheduler.plan(0.0)
    with pytest.raises(RuntimeError, match="control is set while a step runs"):
        core.scheduler.set_control(Control())
    runner = core.runner
    assert isinstance(runner, MirrorRunner)
    other, result = msgspec.structs.replace(plan), runner.compute(plan.rows)
    with pytest.raises(RuntimeError, match="was not planned last"):
        core.scheduler.commit(other, result, 0.0)
    assert core.scheduler.commit(plan, result, 0.0) == {}
