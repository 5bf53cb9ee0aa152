"""One test a trap (shared/reference/engine-traps.md), and one for each promise of the two modes."""

import pytest

from engine.core import ControlError, EngineCore
from engine.messages import Output
from engine.protocol import Control, Record
from engine.request import RequestTooLarge
from engine.step_planner import MAX_SKIPS
from tests.engine.mirror import EOS, MirrorRunner, expected_output, greedy, mirror_core

ENDLESS = {"ignore_eos": True}


def step(core: EngineCore) -> Record:
    record = core.step()[1]
    assert record is not None
    return record


def finish(core: EngineCore) -> tuple[list[Record], dict[str, list[int]], dict[str, str]]:
    records, tokens, reasons = [], {}, {}
    while core.has_work:
        outputs, record = core.step()
        records.append(record)
        for output in outputs:
            collect(output, tokens, reasons)
        assert len(records) < 10_000
    return records, tokens, reasons


def collect(output: Output, tokens: dict[str, list[int]], reasons: dict[str, str]) -> None:
    if output.token_id is not None:
        tokens.setdefault(output.request, []).append(output.token_id)
    if output.finished:
        reasons[output.request] = output.finished


def test_of_a_wholly_cached_prompt_one_token_is_computed():
    # Trap 1.
    core = mirror_core()
    for name in ("a", "b"):
        core.add(name, list(range(8)), greedy(3, **ENDLESS))
        records, tokens, _ = finish(core)
        assert tokens[name] == expected_output(list(range(8)), greedy(3, **ENDLESS), 64)[0]
    assert records[0].rows[0].tokens == 1
    assert records[0].rows[0].cached == 7


def test_a_resumed_request_schedules_what_the_cache_left():
    # Trap 2, 8 and 19.
    core = mirror_core(num_blocks=9, max_model_len=36, control=Control(max_num_batched_tokens=64))
    core.add("old", [1] * 8, greedy(24, **ENDLESS))
    core.add("young", [2] * 8, greedy(16, **ENDLESS))
    records, tokens, _ = finish(core)
    (lost,) = [p for r in records for p in r.preempted]
    assert lost.request == "young"
    (resumed,) = [j for r in records for j in r.joined if j.resumed]
    assert resumed.request == "young"
    assert resumed.cached_tokens % 4 == 0
    (back,) = [r for r in records if any(j.resumed for j in r.joined)]
    row = next(row for row in back.rows if row.request == "young")
    assert row.tokens + row.cached == resumed.looked_up_tokens
    assert tokens["young"] == expected_output([2] * 8, greedy(16, **ENDLESS), 36)[0]
    assert tokens["old"] == expected_output([1] * 8, greedy(24, **ENDLESS), 36)[0]
    sharing = records[-1].sharing
    assert sharing.looked_up_tokens == 16
    assert sharing.found_tokens == 0
    assert sharing.resumed_looked_up_tokens == resumed.looked_up_tokens
    assert sharing.resumed_found_tokens == resumed.cached_tokens


def test_what_a_resumed_request_finds_of_its_own_is_no_cached_prompt():
    # Trap 19.
    core = mirror_core(num_blocks=8, max_model_len=32, control=Control(max_num_batched_tokens=64))
    core.add("old", [1] * 8, greedy(20, **ENDLESS))
    core.add("young", [2] * 9, greedy(16, **ENDLESS))
    found: set[int] = set()
    records = []
    while core.has_work:
        outputs, record = core.step()
        records.append(record)
        found |= {output.cached_tokens for output in outputs if output.request == "young"}
    assert max(j.cached_tokens for r in records for j in r.joined if j.resumed) > 0
    assert found == {0}


def test_a_block_is_not_found_before_its_step_is_committed():
    # Trap 3.
    core = mirror_core()
    seen: list[int] = []
    runner = core.runner
    assert isinstance(runner, MirrorRunner)
    runner.during = lambda: seen.append(len(core.pool.cache))
    core.add("a", list(range(9)), greedy(1))
    core.step()
    assert seen == [0]
    assert len(core.pool.cache) == 2


def test_nothing_a_step_uses_is_freed_while_it_runs_and_only_once_after():
    # Traps 6 and 7.
    core = mirror_core()
    held: list[int] = []
    runner = core.runner
    assert isinstance(runner, MirrorRunner)

    def abort_twice() -> None:
        core.abort("a")
        core.abort("a")
        held.append(core.pool.num_available)

    core.add("a", list(range(9)), greedy(20))
    runner.during = abort_twice
    outputs, record = core.step()
    assert record is not None
    assert held == [29]
    assert core.pool.num_available == 32
    assert [(o.request, o.finished) for o in outputs] == [("a", "abort")]
    assert [left.reason for left in record.left] == ["abort"]
    core.abort("a")
    assert core.step() == ((), None)


def test_a_request_that_could_never_run_is_refused_with_its_numbers():
    # Trap 9.
    core = mirror_core(num_blocks=4, max_model_len=64)
    with pytest.raises(RequestTooLarge, match="may need 5 blocks, and the whole pool has 4"):
        core.add("a", [1] * 10, greedy(10))
    with pytest.raises(RequestTooLarge, match="prompt has 64 tokens"):
        core.add("a", [1] * 64, greedy(1))
    core.add("a", [1] * 8, greedy(8))
    with pytest.raises(ValueError, match="in use"):
        core.add("a", [1], greedy(1))


def test_a_long_prefill_leaves_half_of_each_step_to_others_and_never_holds_up_a_decode():
    # Trap 10.
    core = mirror_core(num_blocks=64, control=Control(max_num_batched_tokens=16, prefix_cache=False))
    core.add("running", [1] * 4, greedy(30, **ENDLESS))
    step(core)
    core.add("long", [2] * 60, greedy(1))
    core.add("short", [3] * 5, greedy(1))
    record = step(core)
    rows = {row.request: row for row in record.rows}
    assert rows["running"].kind == "decode"
    assert rows["short"].tokens == 5
    assert rows["long"].tokens == 8 + 2, "its half, and what nobody else could use"


def test_a_lone_prefill_has_the_whole_budget():
    core = mirror_core(control=Control(max_num_batched_tokens=16))
    core.add("long", list(range(40)), greedy(1))
    assert [row.tokens for row in step(core).rows] == [16]


def test_a_head_that_does_not_fit_is_passed_a_bounded_number_of_times():
    # Trap 10.
    core = mirror_core(num_blocks=16, max_model_len=64, control=Control(prefix_cache=False))
    core.add("big", [1] * 40, greedy(20, **ENDLESS))
    step(core)
    core.add("head", [2] * 28, greedy(4, **ENDLESS))
    order: list[str] = []
    for index in range(MAX_SKIPS + 4):
        core.add(f"small{index}", [3, index], greedy(1))
        order += [joined.request for joined in step(core).joined]
    order += [joined.request for record in finish(core)[0] for joined in record.joined]
    assert order.index("head") == MAX_SKIPS
    assert len(order) == MAX_SKIPS + 5


def test_a_prefill_that_waits_for_blocks_is_not_passed_by_newcomers():
    # Trap 10: each newcomer fits, and together they would keep the long one waiting for ever.
    control = Control(prefix_cache=False, max_num_batched_tokens=512)
    core = mirror_core(num_blocks=128, max_model_len=449, control=control)
    for index in range(12):
        core.add(f"first{index}", [1, index], greedy(60 + 5 * index, **ENDLESS))
    step(core)
    core.add("long", [2] * 441, greedy(2, **ENDLESS))
    for index in range(600):
        if index % 4 == 0:
            core.add(f"late{index}", [3, index % 32], greedy(60, **ENDLESS))
        outputs, record = core.step()
        assert record is not None
        if any(output.request == "long" for output in outputs):
            break
        runs = any(request.id == "long" for request in core.scheduler.running)
        if runs and not any(row.request == "long" for row in record.rows):
            assert record.joined == ()
    else:
        pytest.fail("the long request starved")


@pytest.mark.parametrize(
    ("prompt", "settings", "reason", "generated"),
    [
        (4, {"max_tokens": 1, "ignore_eos": True}, "length", 1),
        (15, {"max_tokens": 9, "ignore_eos": True}, "length", 1),
        (10, {"max_tokens": 90, "ignore_eos": True}, "length", 6),
        (4, {"max_tokens": 2, "min_tokens": 9, "ignore_eos": True}, "length", 2),
    ],
)
def test_length_edges(prompt, settings, reason, generated):
    # Trap 15.
    core = mirror_core(max_model_len=16)
    core.add("a", [7] * prompt, greedy(**settings))
    _, tokens, reasons = finish(core)
    assert reasons == {"a": reason}
    assert len(tokens["a"]) == generated


def test_a_stop_is_reported_before_a_length_and_not_before_min_tokens():
    # Trap 15.
    prompt = [5, 6]
    plain = expected_output(prompt, greedy(6, **ENDLESS), 64)[0]
    for settings, count, reason in (
        (greedy(3, stop_token_ids=(plain[2],), **ENDLESS), 3, "stop"),
        (greedy(6, stop_token_ids=(plain[0],), min_tokens=3, **ENDLESS), 6, "length"),
    ):
        core = mirror_core()
        core.add("a", prompt, settings)
        _, tokens, reasons = finish(core)
        assert len(tokens["a"]) == count
        assert reasons["a"] == reason


def test_end_of_sequence_stops_unless_it_is_ignored():
    prompt = next([n] for n in range(31) if EOS in expected_output([n], greedy(40, **ENDLESS), 64)[0][:-1])
    for settings in (greedy(40), greedy(40, **ENDLESS)):
        core = mirror_core()
        core.add("a", prompt, settings)
        _, tokens, reasons = finish(core)
        assert (tokens["a"], reasons["a"]) == expected_output(prompt, settings, 64)
        assert (reasons["a"] == "stop") is not settings.ignore_eos


def test_a_static_batch_starts_when_nothing_runs_and_holds_its_finished_members():
    core = mirror_core(control=Control(batching="static"))
    core.add("short", [1, 2], greedy(2, **ENDLESS))
    core.add("long", [3, 4], greedy(5, **ENDLESS))
    first = step(core)
    core.add("late", [5, 6], greedy(1, **ENDLESS))
    records = [first, *finish(core)[0]]
    kinds = [[(row.request, row.kind) for row in r.rows] for r in records]
    assert kinds[1] == [("short", "decode"), ("long", "decode")]
    assert kinds[2] == kinds[4] == [("long", "decode"), ("short", "held")]
    assert kinds[5] == [("late", "prefill")]
    assert [held.request for held in records[1].held] == ["short"]
    assert records[5].released == ("short", "long")
    assert records[4].pool.free + records[4].pool.cached < 32
    assert core.counters.held_tokens == 3
    assert (core.counters.length_capped, core.counters.stopped) == (3, 0)


def test_a_stop_string_leaves_a_static_batch_as_any_other_end_does():
    core = mirror_core(control=Control(batching="static"))
    for name in ("stopped", "left", "last"):
        core.add(name, [1, 2], greedy(9, **ENDLESS))
    step(core)
    core.abort("stopped", "stop")
    core.abort("left")
    record = step(core)
    assert [(row.request, row.kind) for row in record.rows] == [("last", "decode"), ("stopped", "held")]
    assert [(held.request, held.reason) for held in record.held] == [("stopped", "stop")]
    assert [(left.request, left.reason) for left in record.left] == [("left", "abort")]
    core.abort("last", "stop")
    record = step(core)
    assert record.released == ("stopped",)
    assert record.held == ()
    assert [(left.request, left.reason) for left in record.left] == [("last", "stop")]
    assert core.counters.stopped == 2
    assert not core.has_work


def test_switching_to_continuous_releases_the_held_and_admits_the_waiting_at_once():
    core = mirror_core(control=Control(batching="static"))
    core.add("short", [1, 2], greedy(1, **ENDLESS))
    core.add("long", [3, 4], greedy(9, **ENDLESS))
    step(core)
    core.add("late", [5, 6], greedy(1, **ENDLESS))
    step(core)
    seq = core.set_control(Control(batching="continuous"))
    record = step(core)
    assert record.seq == seq
    assert record.control.batching == "continuous"
    assert record.released == ("short",)
    assert [j.request for j in record.joined] == ["late"]


def test_switching_to_static_lets_those_that_run_finish_as_one_batch():
    core = mirror_core()
    core.add("a", [1, 2], greedy(4, **ENDLESS))
    step(core)
    core.set_control(Control(batching="static"))
    core.add("b", [3, 4], greedy(1, **ENDLESS))
    joined = [(r.seq, j.request) for r in finish(core)[0] for j in r.joined]
    assert joined == [(5, "b")]


def test_reserved_requests_take_whole_runs_and_wait_for_a_hole():
    core = mirror_core(num_blocks=10, max_model_len=16, control=Control(allocation="reserved"))
    for name in "abc":
        core.add(name, [1, 2, 3], greedy(4, **ENDLESS))
    record = step(core)
    assert [j.request for j in record.joined] == ["a", "b"]
    assert record.waste.held == 8 * 4
    assert record.waste.filled == 6
    assert record.waste.internal == 26
    assert record.waste.external == 2 * 4
    assert record.pool.reserved == 6
    assert record.sharing.looked_up_tokens == 0
    _, tokens, _ = finish(core)
    assert tokens["c"] == expected_output([1, 2, 3], greedy(4, **ENDLESS), 16)[0]


def test_a_reservation_gives_back_what_it_has_not_filled_when_paged_is_chosen():
    core = mirror_core(control=Control(allocation="reserved"), max_model_len=32)
    prompt = list(range(9))
    core.add("a", prompt, greedy(6, **ENDLESS))
    assert step(core).waste.internal == 32 - 9
    core.set_control(Control(allocation="paged"))
    record = core.flush()
    assert record is not None
    assert record.unreserved == ("a",)
    assert (record.waste.held, record.waste.internal, record.pool.reserved) == (12, 3, 0)
    core.add("b", [*prompt[:8], 30], greedy(6, **ENDLESS))
    joined = step(core).joined
    assert [(j.request, j.cached_tokens) for j in joined] == [("b", 8)], "what it had computed can be found"
    _, tokens, _ = finish(core)
    assert tokens["b"] == expected_output([*prompt[:8], 30], greedy(6, **ENDLESS), 32)[0][1:]


def test_requests_keep_their_tables_when_reserved_is_chosen():
    core = mirror_core(max_model_len=16)
    core.add("a", [1] * 3, greedy(6, **ENDLESS))
    step(core)
    core.set_control(Control(allocation="reserved"))
    core.add("b", [1] * 3, greedy(6, **ENDLESS))
    step(core)
    states = {state.request: state for state in core.snapshot().requests}
    assert (states["a"].allocation, len(states["a"].table)) == ("paged", 1)
    assert (states["b"].allocation, len(states["b"].table)) == ("reserved", 4)


def test_nobody_is_admitted_on_blocks_that_a_prefill_under_way_still_needs():
    control = Control(max_num_batched_tokens=8, prefix_cache=False)
    core = mirror_core(num_blocks=20, max_model_len=64, control=control)
    core.add("first", [1] * 48, greedy(2, **ENDLESS))
    core.add("second", [2] * 48, greedy(2, **ENDLESS))
    records, _, reasons = finish(core)
    assert reasons == {"first": "length", "second": "length"}
    assert core.counters.preemptions == 0
    joined = {j.request: r.seq for r in records for j in r.joined}
    first_left = next(r.seq for r in records if any(left.request == "first" for left in r.left))
    assert joined["second"] > first_left


def test_a_prefix_that_is_being_computed_is_waited_for_and_then_hit():
    core = mirror_core(num_blocks=64, control=Control(max_num_batched_tokens=16))
    prefix = list(range(20))
    core.add("first", [*prefix, 1], greedy(2, **ENDLESS))
    core.add("second", [*prefix, 2], greedy(2, **ENDLESS))
    core.add("other", [9] * 6, greedy(2, **ENDLESS))
    records, tokens, _ = finish(core)
    assert [j.request for j in records[0].joined] == ["first", "other"]
    (joined,) = [j for r in records for j in r.joined if j.request == "second"]
    assert joined.cached_tokens == 20
    assert tokens["second"] == expected_output([*prefix, 2], greedy(2, **ENDLESS), 64)[0]
    assert core.counters.prefill_tokens == 21 + 1 + 6


def test_unchunked_prompts_run_whole_and_one_past_the_budget_runs_as_the_only_prefill():
    control = Control(chunked_prefill=False, max_num_batched_tokens=8, prefix_cache=False)
    core = mirror_core(num_blocks=64, control=control)
    core.add("running", [1] * 4, greedy(30, **ENDLESS))
    step(core)
    core.add("long", [2] * 20, greedy(9, **ENDLESS))
    core.add("next", [3] * 7, greedy(9, **ENDLESS))
    assert [(row.request, row.tokens) for row in step(core).rows] == [("running", 1), ("long", 20)]
    assert [(row.request, row.tokens) for row in step(core).rows] == [("running", 1), ("long", 1), ("next", 7)]


def test_logits_are_asked_for_only_where_a_token_is_sampled():
    core = mirror_core(control=Control(max_num_batched_tokens=4))
    core.add("a", list(range(10)), greedy(2, **ENDLESS))
    finish(core)
    runner = core.runner
    assert isinstance(runner, MirrorRunner)
    assert [[row.samples for row in plan.rows] for plan in runner.plans] == [[False], [False], [True], [True]]


@pytest.mark.parametrize(
    ("control", "message"),
    [
        (Control(max_num_seqs=0), "max_num_seqs: must be from 1 to"),
        (Control(max_num_batched_tokens=0), "max_num_batched_tokens: must be from 1 to"),
        (Control(allocation="reserved"), "needs 16 blocks, and the pool has 15"),
    ],
)
def test_control_out_of_range_is_refused_and_changes_nothing(control, message):
    core = mirror_core(num_blocks=15, max_model_len=64)
    before = core.control
    with pytest.raises(ControlError, match=message):
        core.set_control(control)
    assert core.control == before
    assert core.flush() is None
