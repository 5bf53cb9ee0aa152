"""Several simulated engines: the real cores and the real router, against one engine and against counts by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from engine.cluster.protocol import ClusterControl, Routing
from engine.protocol import Control
from engine.simulator.pools import PoolSimulator
from engine.simulator.prediction import Pools, PoolsPrediction
from engine.simulator.repeated import with_new_sessions
from engine.simulator.runner import NO_COST, StepCost
from engine.simulator.slo import Slo
from engine.trace_lengths import TracedRequest, read_trace
from tests.engine.simulator.traces import settings, simulate, traced

CHAT500 = Path(__file__).resolve().parents[3] / "traces" / "chat500.jsonl"
STEP = StepCost(step=1.0, token=0.0, context=0.0, move=0.0)
REPLICA = ClusterControl(replicas=1)
PAIR = ClusterControl(prefill=1, decode=1, local_prefill=0)
LINK = 1024.0
AS_ONE = ("requests", "hits", "waste", "preemptions", "queue", "throughput")


def pools(
    *trace: TracedRequest, cluster: ClusterControl, control: Control | None = None, **changes: Any
) -> PoolsPrediction:
    """The prediction of a whole run; whatever was held for somebody is free at its end, and nothing is expected."""
    more = {name: changes.pop(name) for name in ("lease_seconds", "link_latency", "slo") if name in changes}
    wanted = Pools(cluster, changes.pop("link", LINK), **more)
    simulator = PoolSimulator(trace, settings(changes.pop("requests", len(trace)), control, **changes), wanted)
    simulator.run()
    for worker in simulator.workers.values():
        assert worker.asleep
        assert not worker.core.has_work
        assert worker.core.pool.num_available == worker.core.pool.num_blocks
        assert simulator.router.load(worker.name) == 0
    return simulator.prediction()


def chats(count: int) -> tuple[TracedRequest, ...]:
    return read_trace(CHAT500)[:count]


@pytest.mark.parametrize(
    "control",
    [Control(), Control(preempt="swap"), Control(max_num_seqs=3), Control(batching="static")],
)
def test_a_pool_of_one_replica_is_the_one_engine_exactly(control: Control) -> None:
    more: dict[str, Any] = {
        "block_size": 16, "num_blocks": 260, "num_host_blocks": 100, "max_model_len": 4096, "cost": StepCost(),
        "speed": 60.0, "check_invariants": False,
    }  # fmt: skip
    trace = chats(60)
    alone = simulate(*trace, control=control, **more)
    assert alone.preemptions.swap > 0 or control.preempt != "swap"
    together = pools(*trace, cluster=REPLICA, control=control, **more)
    assert {name: getattr(together, name) for name in AS_ONE} == {name: getattr(alone, name) for name in AS_ONE}


def test_what_is_handed_over_takes_what_its_link_says() -> None:
    # 8 tokens of prompt are two blocks of 4 tokens of 8 bytes: 64 bytes. The third token is the last.
    found = pools(traced(0.0, 3, (1, 8)), cluster=PAIR, cost=STEP, link=32.0, link_latency=0.5)
    assert (found.transfers.done, found.transfers.blocks, found.transfers.nbytes) == (1, 2, 64)
    assert found.transfers.moved.max == 64 / 32 + 0.5
    assert found.queue.time_to_first_token.max == 1.0  # the prefill engine's own step
    # A step to prefill, the transfer, then two steps to decode.
    assert found.queue.end_to_end.max == 1.0 + 2.5 + 2.0
    assert found.queue.inter_token.max == 2.5 + 1.0
    assert (found.router.handed_over, found.router.local) == (1, 0)
    assert [(use.steps, use.busy_seconds) for use in found.roles.values()] == [(1, 1.0), (2, 2.0)]


def test_transfers_at_once_share_the_link() -> None:
    trace = [traced(0.0, 2, (piece, 8)) for piece in (1, 2)]
    found = pools(*trace, cluster=PAIR, cost=STEP, link=32.0)
    # Both are prefilled in one step, and then 128 bytes go at 32 a second.
    assert (found.transfers.moved.count, found.transfers.moved.max) == (2, 4.0)
    assert found.queue.end_to_end.max == 1.0 + 4.0 + 1.0
    apart = pools(*trace, cluster=ClusterControl(prefill=2, decode=2, local_prefill=0), cost=STEP, link=32.0)
    assert apart.transfers.moved.max == 2.0


def test_only_what_is_not_there_is_moved() -> None:
    trace = [traced(0.0, 2, (1, 8), (2, 4)), traced(99.0, 2, (1, 8), (3, 4))]
    found = pools(*trace, cluster=PAIR, cost=STEP)
    assert found.transfers.blocks == 3 + 1
    assert found.hits.found_tokens == 8  # where it was prefilled, and counted once
    assert found.hits.looked_up_tokens == 24


def test_what_decodes_prefills_the_little_that_is_missing() -> None:
    trace = [traced(0.0, 2, (1, 8), (2, 4)), traced(99.0, 2, (1, 8), (3, 4))]
    found = pools(*trace, cluster=ClusterControl(prefill=1, decode=1, local_prefill=4), cost=STEP)
    assert (found.router.handed_over, found.router.local) == (1, 1)
    assert found.transfers.done == 1


def test_a_lease_that_ends_first_costs_the_prompt_again() -> None:
    found = pools(traced(0.0, 3, (1, 8)), cluster=PAIR, cost=STEP, link=1.0, lease_seconds=10.0)
    assert (found.transfers.done, found.transfers.failed, found.transfers.expired) == (0, 1, 1)
    # 64 seconds at one byte a second, of no use; then the prompt and its first token at once, and the last.
    assert found.queue.end_to_end.max == 1.0 + 64.0 + 2.0
    assert found.requests.output_tokens == 3
    assert found.throughput.computed_tokens == 8 + 9 + 1


def test_an_answer_of_one_token_is_handed_to_nobody() -> None:
    found = pools(traced(0.0, 1, (1, 8)), cluster=PAIR, cost=STEP)
    assert (found.requests.completed, found.router.handed_over, found.transfers.done) == (1, 0, 0)


def test_colocated_the_same_engines_hand_nothing_over() -> None:
    colocated = ClusterControl(prefill=1, decode=1, separate=False, local_prefill=0)
    trace = [traced(float(at), 3, (at, 8)) for at in range(6)]
    found, replicas = (pools(*trace, cluster=one, cost=STEP) for one in (colocated, ClusterControl(replicas=2)))
    assert found.router.handed_over == 0
    assert found.queue == replicas.queue


def test_two_replicas_serve_twice_as_many_at_once() -> None:
    trace = [traced(0.0, 3, (piece, 8)) for piece in range(4)]
    one_row = Control(max_num_seqs=1)
    one, two = (pools(*trace, cluster=ClusterControl(replicas=n), control=one_row, cost=STEP) for n in (1, 2))
    assert (one.throughput.seconds, two.throughput.seconds) == (12.0, 6.0)
    assert two.roles["replica"].busy_share == 1.0


def test_routing_by_prefix_finds_more_than_taking_turns() -> None:
    trace = [traced(10.0 * at, 2, (at % 3, 40), (9 + at, 4)) for at in range(30)]

    def hits(routing: Routing) -> int:
        cluster = ClusterControl(replicas=4, routing=routing)
        return pools(*trace, cluster=cluster, cost=STEP, num_blocks=30, max_model_len=64).hits.found_tokens

    assert hits("prefix") == 27 * 40
    assert hits("round_robin") < hits("prefix")


def test_goodput_counts_who_keeps_to_all_limits() -> None:
    trace = [traced(0.0, 3, (1, 8)), traced(0.5, 3, (2, 8))]
    one_row = Control(max_num_seqs=1)
    slo = Slo(ttft=2.0, itl=1.5)
    found = pools(*trace, cluster=REPLICA, control=one_row, cost=STEP, slo=slo)
    assert found.goodput is not None
    assert (found.goodput.met, found.goodput.share, found.goodput.requests_per_second) == (1, 0.5, 1 / 6)
    slow = pools(*trace, cluster=REPLICA, control=one_row, cost=STEP, slo=Slo(itl=0.5))
    assert slow.goodput is not None
    assert slow.goodput.met == 0
    assert pools(*trace, cluster=REPLICA, cost=STEP).goodput is None


def test_what_could_never_run_is_refused_with_the_turns_after_it() -> None:
    trace = [traced(0.0, 4, (1, 100)), traced(1.0, 4, (1, 100), (9, 4), after=0), traced(2.0, 4, (2, 8))]
    found = pools(*trace, cluster=PAIR, max_model_len=64)
    assert (found.requests.completed, found.requests.refused, found.requests.unsent) == (1, 1, 1)


def test_half_a_run_tells_what_it_knows() -> None:
    trace = [traced(float(at), 4, (at, 8)) for at in range(9)]
    simulator = PoolSimulator(trace, settings(9), Pools(PAIR, LINK))
    simulator.run(stopped=lambda: simulator.tally.completed == 3)
    assert not simulator.prediction().simulation.complete
    simulator.run()
    assert simulator.prediction().requests.completed == 9


def test_new_sessions_share_what_sessions_share() -> None:
    trace = [
        traced(0.0, 2, (7, 8), (1, 4), answer=2),
        traced(1.0, 2, (7, 8), (1, 4), (2, 2), (3, 2), answer=4, after=0, think=1.0),
        traced(9.0, 2, (7, 8), (5, 4), answer=6),
    ]
    longer = with_new_sessions(trace, 8)
    assert longer[:3] == tuple(trace)
    assert [one.segments[0] for one in longer] == [(7, 8)] * 8
    assert len({one.segments[1] for one in longer}) == 5  # a session's own, the same in all its turns
    assert longer[4].segments[2] == (longer[3].answer, 2)
    assert (longer[4].after, longer[7].after) == (3, 6)
    assert [one.arrival for one in longer[3:6]] == [13.5, 14.5, 22.5]
    assert (
        simulate(*longer, cost=NO_COST).hits.found_blocks > simulate(*trace, cost=NO_COST, requests=8).hits.found_blocks
    )


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 1.0, 7.0]),  # since the one before
        st.integers(1, 5),
        st.integers(0, 2),  # a beginning that several have
        st.integers(1, 14),
        st.one_of(st.none(), st.integers(0, 5)),  # the request that it follows
    ),
    min_size=1,
    max_size=9,
)


def drawn(requests: list[tuple[float, int, int, int, int | None]]) -> tuple[TracedRequest, ...]:
    trace, now = [], 0.0
    for index, (gap, output, beginning, own, after) in enumerate(requests):
        now += gap
        follows = after if after is not None and after < index else None
        pieces = ((beginning, 6), (10 + index, own))
        think = 0.5 if follows is not None else 0.0
        trace.append(traced(now, output, *pieces, answer=100 + index, after=follows, think=think))
    return tuple(trace)


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    requests=REQUESTS,
    sizes=st.tuples(st.integers(0, 2), st.integers(1, 2), st.integers(0, 1)),
    routing=st.sampled_from(["prefix", "least_loaded", "round_robin"]),
    local=st.sampled_from([0, 5, 100]),
    link=st.sampled_from([4.0, 1000.0]),
    lease=st.sampled_from([1.0, 30.0]),
    blocks=st.sampled_from([9, 40]),
)
def test_every_request_is_served_whole_once_whatever_the_cluster(
    requests: list[tuple[float, int, int, int, int | None]],
    sizes: tuple[int, int, int],
    routing: Routing,
    local: int,
    link: float,
    lease: float,
    blocks: int,
) -> None:
    trace = drawn(requests)
    prefill, decode, replicas = sizes
    cluster = ClusterControl(True, routing, local, prefill, decode, replicas)
    found = pools(
        *trace, cluster=cluster, link=link, lease_seconds=lease, num_blocks=blocks, max_model_len=32,
        control=Control(max_num_seqs=3, max_num_batched_tokens=16),
    )  # fmt: skip
    alone = simulate(*trace, num_blocks=blocks, max_model_len=32)
    assert found.requests == alone.requests
    assert found.requests.completed == len(trace)
    assert found.requests.output_tokens == sum(one.output_tokens for one in trace)
    assert found.queue.inter_token.count == sum(one.output_tokens - 1 for one in trace)
    assert found.queue.wait.count == len(trace)
    assert found.router.handed_over == found.transfers.done + found.transfers.failed
    assert found.hits.looked_up_tokens == sum(one.prompt_tokens for one in trace)
    assert sum(use.computed_tokens for use in found.roles.values()) == found.throughput.computed_tokens
    assert found.roles.keys() == {role for role, n in zip(("prefill", "decode", "replica"), sizes, strict=True) if n}
