"""A simulation is the real core on a made-up clock: its figures against counts made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core import ControlError
from engine.protocol import Control
from engine.simulator.runner import NO_COST, StepCost
from engine.simulator.simulate import Simulator
from engine.trace_lengths import read_trace
from tests.engine.simulator.traces import settings, simulate, traced

CHAT500 = Path(__file__).resolve().parents[3] / "traces" / "chat500.jsonl"
MOONCAKE = CHAT500.parents[2] / "shared" / "traces" / "mooncake_conversation_trace.jsonl"
STEP = StepCost(step=1.0, token=0.0, context=0.0, move=0.0)
ONE_ROW = Control(max_num_seqs=1)


def test_a_step_costs_what_the_model_of_cost_says() -> None:
    result = simulate(traced(3.0, 3, (1, 6)))
    # 6 tokens and their context; then two decodes with contexts of 7 and 8.
    prefill = 0.5 + 6 * 0.125 + 6 * 0.0625
    decodes = [0.5 + 0.125 + context * 0.0625 for context in (7, 8)]
    assert result.queue.wait.max == 0.0
    assert result.queue.time_to_first_token.p50 == prefill
    assert result.queue.end_to_end.p50 == result.throughput.seconds == prefill + sum(decodes)
    assert result.throughput.busy_seconds == result.throughput.seconds
    assert (result.throughput.steps, result.throughput.computed_tokens) == (3, 8)
    assert result.throughput.output_tokens_per_second == 3 / result.throughput.seconds


def test_who_waits_waits_until_a_row_is_free() -> None:
    trace = [traced(at, 3, (piece, 4)) for piece, at in enumerate((0.0, 0.5, 0.5))]
    result = simulate(*trace, control=ONE_ROW, cost=STEP)
    # Each takes three steps of a second: the others begin at 3 and 6.
    assert (result.queue.wait.p50, result.queue.wait.max) == (2.5, 5.5)
    assert result.queue.max_length == 2
    assert result.queue.end_to_end.max == 8.5
    assert result.throughput.mean_rows == 1.0


def test_an_idle_engine_jumps_to_the_next_arrival() -> None:
    result = simulate(traced(0.0, 2, (1, 4)), traced(1000.0, 2, (2, 4)), cost=STEP)
    assert (result.throughput.seconds, result.throughput.busy_seconds, result.throughput.steps) == (1002.0, 4.0, 4)
    assert result.queue.wait.max == 0.0


def test_without_cost_no_time_passes_and_every_request_is_alone() -> None:
    result = simulate(*[traced(float(at), 5, (at, 9)) for at in range(4)], cost=NO_COST)
    assert result.throughput.seconds == 3.0
    assert result.throughput.output_tokens_per_second is None
    assert (result.throughput.mean_rows, result.queue.end_to_end.max) == (1.0, 0.0)


def test_every_token_of_the_trace_is_served_and_an_infinite_pool_hits_what_can_be_hit() -> None:
    trace = read_trace(CHAT500)[:200]
    control = Control(max_num_batched_tokens=2048)
    result = simulate(*trace, control=control, block_size=16, max_model_len=4096, speed=20.0, check_invariants=False)
    assert result.simulation.complete
    assert result.requests.completed == result.requests.total == 200
    assert result.requests.prompt_tokens == sum(request.prompt_tokens for request in trace)
    assert result.requests.output_tokens == sum(request.output_tokens for request in trace)
    assert result.requests.cut_short == 0
    assert result.hits.looked_up_tokens == result.requests.prompt_tokens
    assert result.hits.looked_up_blocks == result.hits.ideal.blocks
    assert result.hits.evicted_tokens == 0
    # All but what two that overlap compute at the same time.
    assert 0.99 * result.hits.ideal.reusable_blocks <= result.hits.found_blocks <= result.hits.ideal.reusable_blocks
    assert result.waste.peak_used_blocks < Simulator(trace, settings(200, block_size=16)).core.info.num_blocks


def test_hits_are_the_ideal_ones_where_requests_come_one_by_one() -> None:
    trace = [
        traced(0.0, 6, (1, 8), (2, 3), answer=3),
        traced(99.0, 2, (1, 8), (2, 3), (3, 6), (4, 1), answer=5),
        traced(199.0, 2, (1, 8), answer=6),
        traced(299.0, 2, (1, 7), (9, 9), answer=7),
    ]
    result = simulate(*trace)
    # The second finds 16 of 18 tokens, 5 of them generated; the third must compute its last block again.
    assert result.hits.ideal.reusable_blocks == 4 + 1 + 1
    assert result.hits.found_blocks == 6
    # The third copies the other 3 tokens before its last, the fourth the 3 of block two that it shares.
    assert (result.hits.found_tokens, result.hits.copied_tokens) == (24 + 6, 6)
    assert result.hits.block_rate == 6 / (3 + 5 + 2 + 4)


def test_a_real_trace_hits_what_can_be_hit() -> None:
    if not MOONCAKE.exists():
        pytest.skip(f"{MOONCAKE} is not here")
    trace = read_trace(MOONCAKE)[:400]
    control = Control(max_num_batched_tokens=8192)
    most = {"block_size": 512, "max_model_len": 130_000, "check_invariants": False, "partial_hits": False}
    hits = simulate(*trace, control=control, **most).hits
    assert hits.looked_up_blocks == hits.ideal.blocks
    assert hits.found_blocks == hits.ideal.reusable_blocks > 0


def test_a_small_pool_evicts_and_an_infinite_one_does_not() -> None:
    trace = [traced(float(100 * turn), 1, (turn % 2, 12)) for turn in range(6)]
    assert simulate(*trace).hits.found_blocks == 8
    small = simulate(*trace, num_blocks=4, max_model_len=16)
    assert small.hits.found_blocks < 8
    assert small.waste.peak_used_blocks == 4


def test_no_prefix_cache_looks_nothing_up() -> None:
    result = simulate(traced(0.0, 1, (1, 8)), traced(99.0, 1, (1, 8)), control=Control(prefix_cache=False))
    assert result.hits.token_rate is None
    assert result.hits.found_tokens == 0
    assert result.hits.ideal.reusable_blocks == 1


def test_too_many_for_the_pool_are_preempted_and_still_served() -> None:
    trace = [traced(0.0, 30, (piece, 8)) for piece in range(4)]
    roomy = simulate(*trace)
    tight = simulate(*trace, num_blocks=20, max_model_len=40)
    assert roomy.preemptions.recompute == roomy.preemptions.swap == 0
    assert tight.preemptions.recompute > 0
    assert tight.preemptions.lost_tokens > 0
    assert 0 < tight.preemptions.requests <= 4
    assert tight.requests.output_tokens == 120
    # Only first admissions count.
    assert tight.hits.looked_up_tokens == 32
    assert tight.hits.found_tokens == 0
    assert tight.throughput.computed_tokens > roomy.throughput.computed_tokens


def test_swapping_costs_moves_and_loses_nothing() -> None:
    trace = [traced(0.0, 30, (piece, 8)) for piece in range(4)]
    pool = {"num_blocks": 20, "max_model_len": 40, "cost": STEP}
    free = simulate(*trace, **pool, num_host_blocks=40, control=Control(preempt="swap"))
    assert free.preemptions.swap > 0
    assert free.preemptions.recompute == free.preemptions.lost_tokens == 0
    assert free.preemptions.swapped_out_blocks > 0
    assert free.throughput.computed_tokens == 4 * (8 + 30 - 1)
    pool["cost"] = StepCost(step=1.0, token=0.0, context=0.0, move=0.25)
    dear = simulate(*trace, **pool, num_host_blocks=40, control=Control(preempt="swap"))
    # Out and back, 4 slots a block.
    moves = 2 * free.preemptions.swapped_out_blocks * 4 * 0.25
    assert dear.throughput.busy_seconds == free.throughput.busy_seconds + moves


def test_parts_of_blocks_are_found_unless_whole_ones_are_wanted() -> None:
    trace = [traced(0.0, 1, (1, 6), (2, 2)), traced(99.0, 1, (1, 6), (3, 2))]
    found = simulate(*trace).hits
    assert (found.found_tokens, found.copied_tokens, found.found_blocks) == (6, 2, 1)
    assert found.token_rate == 6 / 16
    whole = simulate(*trace, partial_hits=False).hits
    assert (whole.found_tokens, whole.copied_tokens, whole.found_blocks) == (4, 0, 1)


def test_a_reservation_wastes_what_it_does_not_fill() -> None:
    result = simulate(
        traced(0.0, 3, (1, 6)), control=Control(allocation="reserved"), num_blocks=25, max_model_len=40, cost=STEP
    )
    # 40 slots for three steps, of which 6, 7 and 8 are filled, and none at the end of the last; external: none, as
    # the hole beside it holds another.
    assert result.waste.peak_held_blocks == 10
    paged = simulate(traced(0.0, 3, (1, 6)), num_blocks=25, max_model_len=40, cost=STEP)
    assert paged.waste.internal_share < result.waste.internal_share
    assert result.waste.mean_held == pytest.approx(80 / 3)
    assert result.waste.internal_share == (80 - 6 - 7) / 80
    assert paged.waste.external_share == 0.0


def test_holes_between_reservations_are_external_waste() -> None:
    control = Control(allocation="reserved")
    result = simulate(traced(0.0, 3, (1, 6)), control=control, num_blocks=14, max_model_len=40, cost=STEP)
    # While it holds ten of 14 blocks the other four are no use; after the last step all are free.
    assert result.waste.external_share == pytest.approx(2 * 16 / (3 * 56))


def test_a_static_batch_lets_newcomers_wait_for_its_end() -> None:
    trace = [traced(0.0, 2, (1, 4)), traced(0.0, 9, (2, 4)), traced(0.5, 2, (3, 4))]
    continuous = simulate(*trace, cost=STEP)
    static = simulate(*trace, cost=STEP, control=Control(batching="static"))
    assert continuous.queue.wait.max == 0.5
    assert static.queue.wait.max == 8.5
    # The first one was served when it ended, although it kept its row.
    assert static.queue.end_to_end.max == 10.5
    assert static.requests.completed == 3


def test_the_shortest_prompt_goes_first_if_the_policy_says_so() -> None:
    trace = [traced(0.0, 4, (1, 8)), traced(0.5, 4, (2, 20)), traced(0.75, 4, (3, 4))]
    fcfs = simulate(*trace, cost=STEP, control=ONE_ROW)
    shortest = Control(max_num_seqs=1, scheduling_policy="shortest_prefill", max_wait=1000.0)
    assert fcfs.queue.wait.max == 8.0 - 0.75
    assert simulate(*trace, cost=STEP, control=shortest).queue.wait.max == 8.0 - 0.5


def test_what_could_never_run_is_refused_with_the_turns_after_it() -> None:
    trace = [
        traced(0.0, 4, (1, 100)),
        traced(1.0, 4, (1, 100), (9, 4), after=0),
        traced(2.0, 4, (2, 8)),
        traced(3.0, 60, (3, 8)),
    ]
    result = simulate(*trace, max_model_len=64)
    assert (result.requests.completed, result.requests.refused, result.requests.unsent) == (2, 1, 1)
    assert result.requests.cut_short == 1
    assert result.requests.output_tokens == 4 + 56
    assert result.simulation.complete


def test_a_later_turn_comes_when_the_answer_before_has_ended() -> None:
    trace = [traced(0.0, 4, (1, 4), answer=2), traced(5.0, 1, (1, 4), (2, 4), (3, 1), answer=4, after=0, think=5.0)]
    result = simulate(*trace, cost=STEP)
    assert result.throughput.seconds == 4.0 + 5.0 + 1.0


def test_repetitions_are_new_text_or_the_same() -> None:
    trace = [traced(0.0, 2, (1, 8)), traced(99.0, 2, (2, 8))]
    assert simulate(*trace, requests=6).hits.found_blocks == 0
    assert simulate(*trace, requests=6, fresh=False).hits.found_blocks == 4


def test_half_a_run_tells_what_it_knows() -> None:
    simulator = Simulator([traced(float(at), 4, (at, 8)) for at in range(9)], settings(9))
    simulator.run(stopped=lambda: simulator.tally.completed == 3)
    half = simulator.prediction()
    assert not half.simulation.complete
    assert half.requests.completed == 3
    assert half.queue.end_to_end.count == 3
    simulator.run()
    assert simulator.prediction().requests.completed == 9


def test_nothing_yet_is_no_figure_at_all() -> None:
    simulator = Simulator([traced(0.0, 4, (1, 8))], settings(1))
    before = simulator.prediction()
    assert before.queue.wait.p50 is None
    assert before.hits.token_rate is None
    assert before.throughput.requests_per_second is None


def test_a_reservation_beyond_the_pool_is_an_error() -> None:
    with pytest.raises(ControlError, match="allocation cannot be 'reserved'"):
        Simulator([traced(0.0, 4, (1, 8))], settings(1, Control(allocation="reserved"), num_blocks=3, max_model_len=40))
