"""The policy `fair`: each client gets its turn, whatever the others ask for."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import EngineCore
from engine.fair_shares import REMEMBERED, FairShares
from engine.protocol import Control, Record
from engine.request import Request
from engine.sampling_params import BeamParams, SchedulingParams
from engine.waiting_queue import WaitingQueue, cost
from tests.engine.mirror import greedy, mirror_core

FAIR = Control(scheduling_policy="fair")
ENDLESS = {"ignore_eos": True}


def request(sequence: int, client: str, length: int = 4, max_tokens: int = 8) -> Request:
    scheduling = SchedulingParams(client=client)
    return Request(f"{client}{sequence}", [1] * length, greedy(max_tokens), float(sequence), sequence, scheduling)


def admit_next(queue: WaitingQueue) -> Request:
    (chosen,) = queue.first(1)
    queue.admit(chosen)
    return chosen


def of(client: str) -> SchedulingParams:
    return SchedulingParams(client=client)


def finish(core: EngineCore) -> list[Record]:
    records = []
    while core.has_work:
        record = core.step()[1]
        if record is not None:
            records.append(record)
        assert len(records) < 20_000
    return records


def joined(records: list[Record]) -> list[str]:
    return [one.request for record in records for one in record.joined]


def test_a_flood_does_not_hold_up_another_client() -> None:
    queue = WaitingQueue("fair")
    for sequence in range(10_000):
        queue.add(request(sequence, "flood"))
    for sequence in range(10_000, 10_005):
        queue.add(request(sequence, "calm"))
    order = [admit_next(queue).scheduling.client for _ in range(12)]
    assert order == ["flood", "calm"] * 5 + ["flood", "flood"]
    assert [one.scheduling.client for one in queue.first(3)] == ["flood"] * 3


def test_the_order_holds_for_very_many_clients_as_tags_change() -> None:
    """What is kept sorted is what sorting anew gives."""
    chance = random.Random(7)
    queue = WaitingQueue("fair")
    waiting: list[Request] = []
    admitted: list[Request] = []
    for sequence in range(1500):
        what = chance.random()
        if what < 0.5 or not waiting:
            waiting.append(request(sequence, f"c{chance.randrange(40)}", chance.randint(1, 9), chance.randint(1, 90)))
            queue.add(waiting[-1])
        elif what < 0.6:
            queue.remove(waiting.pop(chance.randrange(len(waiting))))
        elif what < 0.8:
            admitted.append(admit_next(queue))
            waiting.remove(admitted[-1])
        elif admitted and what < 0.9:
            queue.settle(admitted.pop(chance.randrange(len(admitted))))
        elif admitted:  # it is preempted
            waiting.append(admitted.pop(chance.randrange(len(admitted))))
            queue.add(waiting[-1])
        told = queue.first(7)
        queue.reorder("fair")
        assert queue.first(7) == told
        barred = {f"c{chance.randrange(40)}" for _ in range(5)}
        allowed = [one for one in queue if one.scheduling.client not in barred]
        assert queue.first(5, None, barred) == allowed[:5]


def test_who_asks_for_more_at_a_time_has_fewer_turns() -> None:
    queue = WaitingQueue("fair")
    for sequence in range(100):
        queue.add(request(sequence, "long", 60, 60))
        queue.add(request(1000 + sequence, "short", 6, 6))
    order = [admit_next(queue).scheduling.client for _ in range(44)]
    assert order.count("long") == 4
    assert order[:12] == ["long", *["short"] * 10, "long"]


def test_the_order_that_is_told_ahead_is_the_order_in_which_they_come() -> None:
    chance = random.Random(5)
    queue = WaitingQueue("fair")
    for sequence in range(300):
        queue.add(request(sequence, chance.choice("abc"), chance.randint(1, 50), chance.randint(1, 50)))
    told = queue.first(300)
    assert [admit_next(queue) for _ in range(300)] == told


def test_who_comes_back_has_saved_nothing_up_and_owes_nothing() -> None:
    queue = WaitingQueue("fair")
    for sequence in range(50):
        queue.add(request(sequence, "steady"))
    early = request(50, "back")
    queue.add(early)
    assert [admit_next(queue).scheduling.client for _ in range(20)].count("back") == 1
    for sequence in range(60, 64):
        queue.add(request(sequence, "back"))
        queue.add(request(sequence + 100, "new"))
    order = [admit_next(queue).scheduling.client for _ in range(9)]
    assert sorted(order[:3]) == sorted(order[3:6]) == ["back", "new", "steady"]


def test_requests_that_end_in_the_queue_cost_their_client_nothing() -> None:
    queue = WaitingQueue("fair")
    flood = [request(sequence, "a") for sequence in range(1000)]
    for one in flood:
        queue.add(one)
    for sequence in range(1000, 1004):
        queue.add(request(sequence, "b"))
    for one in flood[:990]:
        queue.remove(one)
        queue.settle(one)
    assert [admit_next(queue).scheduling.client for _ in range(8)] == ["a", "b"] * 4


def test_what_an_answer_did_not_use_is_given_back() -> None:
    queue = WaitingQueue("fair")
    for sequence in range(20):
        queue.add(request(sequence, "open", 10, 990))  # asks for all that the model has, and says two words
        queue.add(request(100 + sequence, "exact", 10, 10))
    order = []
    for _ in range(20):
        chosen = admit_next(queue)
        order.append(chosen.scheduling.client)
        chosen.tokens += [1] * 10
        queue.settle(chosen)
    assert order == ["open", "exact"] * 10


def test_what_was_charged_before_all_was_forgotten_is_not_given_back() -> None:
    shares = FairShares()
    shares.arrive("a")
    old = shares.charge("a", 1000)
    shares.leave("a")
    assert len(shares) == 0
    for client in ("a", "b"):
        shares.arrive(client)
    shares.charge("a", 100)
    shares.give_back("a", 1000, old)
    assert shares.tag("a") == shares.tag("b") + 100


def test_one_that_was_preempted_goes_before_all_that_were_not_admitted() -> None:
    queue = WaitingQueue("fair")
    for sequence in range(3):
        queue.add(request(sequence, "a", 50, 50))
    lost = admit_next(queue)
    queue.add(request(10, "b"))
    queue.add(lost)
    assert queue.first(3) == [lost, *(one for one in queue if one.scheduling.client == "b"), queue.first(9)[2]]
    tag = queue.shares.tag("a")
    assert admit_next(queue) is lost
    assert queue.shares.tag("a") == tag, "it is charged once"


def test_forks_and_beams_are_charged_with_the_one_they_come_from() -> None:
    for settings_of_family in ({}, {"beam": BeamParams(3)}):
        core = mirror_core(control=FAIR)
        core.add("family", [1] * 6, greedy(5, **ENDLESS, **settings_of_family), of("a"), siblings=["x", "y"])
        core.add("next", [2] * 6, greedy(5, **ENDLESS), of("a"))
        leader = core.scheduler.requests["family"]
        assert cost(leader) == 6 + 3 * 5
        core.add("other", [3] * 6, greedy(5, **ENDLESS), of("b"))
        core.add("another", [4] * 6, greedy(5, **ENDLESS), of("b"))
        assert [one.id for one in core.scheduler.waiting] == ["family", "other", "another", "next"]
        core.step()
        assert leader.turn is not None
        assert {core.scheduler.requests[name].turn for name in ("family", "x", "y")} == {leader.turn}
        finish(core)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_client_that_always_waits_gets_less_than_another_but_for_a_request_of_each(data) -> None:
    """Goyal et al.'s theorem, and the share that follows: of the work done, one part per client, less one request."""
    queue, sequence = WaitingQueue("fair"), 0
    most: dict[str, int] = {}
    served: dict[str, int] = {}
    steady = [f"steady{i}" for i in range(data.draw(st.integers(1, 3)))]
    passing = ["x", "y", "z"]
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    waiting: list[Request] = []

    def add(client: str) -> None:
        nonlocal sequence
        sequence += 1
        one = request(sequence, client, chance.randint(1, 60), chance.randint(1, 60))
        most[client] = max(most.get(client, 0), cost(one))
        served.setdefault(client, 0)
        waiting.append(one)
        queue.add(one)

    for client in steady:
        for _ in range(3):
            add(client)
    for _ in range(data.draw(st.integers(1, 150))):
        for _ in range(chance.randint(0, 3)):
            add(chance.choice(passing))
        if chance.random() < 0.3 and (left := [one for one in waiting if one.scheduling.client in passing]):
            gone = chance.choice(left)
            queue.remove(gone)
            waiting.remove(gone)
        chosen = admit_next(queue)
        waiting.remove(chosen)
        client = chosen.scheduling.client
        served[client] += cost(chosen)
        if client in steady:
            add(client)
        for one in steady:
            for other in served:
                assert served[other] <= served[one] + most[one] + most[other]
            assert served[one] >= sum(served.values()) / len(served) - max(most.values())


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3), st.integers(1, 100)), max_size=300))
@settings(max_examples=60, deadline=None)
def test_it_remembers_none_but_those_who_wait_or_lately_did(steps) -> None:
    shares, waiting = FairShares(), {}
    for client, what, tokens in steps:
        name = str(client if what else client % 7)
        if what < 2:
            shares.arrive(name)
            waiting[name] = waiting.get(name, 0) + 1
        elif waiting:
            name = min(waiting)
            if what == 2:
                shares.charge(name, tokens)
            shares.leave(name)
            waiting[name] -= 1
            waiting = {one: count for one, count in waiting.items() if count}
        assert len(shares) <= 2 * len(waiting) + REMEMBERED
        assert waiting or len(shares) == 0


def test_clients_that_come_once_are_forgotten_though_somebody_always_waits() -> None:
    shares = FairShares()
    shares.arrive("steady")
    for number in range(20_000):
        shares.arrive(f"once{number}")
        shares.charge(f"once{number}", 100)
        shares.leave(f"once{number}")
        assert len(shares) <= REMEMBERED + 4
    assert shares.virtual_time > shares.tag("steady"), "those that come anew do not go first for ever"


SCRIPTS = st.lists(
    st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 3), st.sampled_from(["none", "fork", "abort"])),
    min_size=1,
    max_size=25,
)


@given(SCRIPTS, st.sampled_from(["continuous", "static"]), st.sampled_from(["paged", "reserved"]))
@settings(max_examples=60, deadline=None)
def test_with_one_client_it_is_exactly_first_come_first_served(script, batching, allocation) -> None:
    """Where memory suffices, so that nobody is passed: who was passed is preempted first under `fair`."""
    told = []
    for policy in ("fcfs", "fair"):
        control = Control(
            scheduling_policy=policy, max_num_seqs=4, max_num_batched_tokens=8, batching=batching, allocation=allocation
        )
        core = mirror_core(num_blocks=64, control=control)
        records = []
        for number, (length, max_tokens, steps, also) in enumerate(script):
            siblings = [f"r{number}-1", f"r{number}-2"] if also == "fork" else []
            core.add(f"r{number}", [number % 30] * length, greedy(max_tokens), of("only"), siblings)
            if also == "abort":
                core.abort(f"r{number // 2}")
            records += [core.step()[1] for _ in range(steps)]
        records += finish(core)
        told.append([(r.rows, r.joined, r.left, r.held, r.released, r.tables) for r in records if r is not None])
        assert len(core.scheduler.waiting.shares) == 0
    assert told[0] == told[1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(1, 20), st.integers(1, 20), st.integers(0, 4),
            st.sampled_from(["one", "one", "fork", "beam", "abort", "fair", "fcfs", "static", "shortest_prefill"]),
        ),
        min_size=1, max_size=40,
    ),
    st.integers(0, 6),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_it_holds_across_preemption_forks_beams_and_switches(script, host_blocks) -> None:
    """The core checks its invariants after each step; every request ends, each is charged once, and nothing is left."""
    core = mirror_core(num_blocks=12, max_model_len=44, control=FAIR, num_host_blocks=host_blocks)
    ended: list[str] = []
    added: set[str] = set()

    def note(record: Record | None) -> None:
        if record is not None:
            ended.extend(left.request for left in (*record.left, *record.held))

    for number, (client, length, max_tokens, steps, what) in enumerate(script):
        name = f"r{number}"
        if what in ("fair", "fcfs", "shortest_prefill"):
            core.set_control(Control(scheduling_policy=what, max_num_seqs=6))
        elif what == "static":
            core.set_control(Control(scheduling_policy="fair", batching="static", max_num_seqs=6))
        elif what == "abort":
            core.abort(f"r{number // 2}")
        else:
            siblings = [f"{name}-1"] if what != "one" else []
            beam = {"beam": BeamParams(2)} if what == "beam" else {}
            length = min(length, 8) if siblings else length
            core.add(name, [number % 30] * length, greedy(min(max_tokens, 10), **beam), of(client), siblings)
            added |= {name, *siblings}
        for _ in range(steps):
            note(core.step()[1])
        running = core.scheduler.running
        assert all(one.turn is not None for one in running)
        if core.control.scheduling_policy == "fair":
            assert running == sorted(running, key=lambda one: (one.turn, one.sequence))
    for record in finish(core):
        note(record)
    note(core.flush())
    assert sorted(ended) == sorted(added)
    assert len(core.scheduler.waiting.shares) == 0
    assert len(core.scheduler.waiting) == 0


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_a_flood_in_the_engine_leaves_another_its_share(batching: str) -> None:
    control = Control(scheduling_policy="fair", max_num_seqs=4, batching=batching)
    core = mirror_core(control=control)
    for number in range(400):
        core.add(f"flood{number}", [1, number % 30], greedy(4, **ENDLESS), of("flood"))
    core.step()
    for number in range(20):
        core.add(f"calm{number}", [2, number], greedy(4, **ENDLESS), of("calm"))
    order = joined(finish(core))
    last = max(place for place, name in enumerate(order) if name.startswith("calm"))
    assert last < 2 * 20 + 4, "every second admission is the other client's"


def test_switching_to_fair_takes_account_of_what_was_served_before() -> None:
    core = mirror_core(control=Control(max_num_seqs=1))
    for number in range(6):
        core.add(f"a{number}", [1, number], greedy(4, **ENDLESS), of("a"))
    for number in range(4):
        core.add(f"b{number}", [2, number], greedy(4, **ENDLESS), of("b"))
    records = []
    while len(joined(records)) < 3:
        records.append(core.step()[1])
    core.set_control(Control(max_num_seqs=1, scheduling_policy="fair"))
    order = joined(records + finish(core))
    assert order == ["a0", "a1", "a2", "b0", "b1", "b2", "a3", "b3", "a4", "a5"]


def test_who_had_its_turn_last_is_preempted_first() -> None:
    """The flood's requests came long before: by arrival it would always be the other client's that give way."""
    core = mirror_core(num_blocks=8, max_model_len=32, control=Control(scheduling_policy="fair", max_num_seqs=2))
    for number in range(4):
        core.add(f"flood{number}", [1, number] * 4, greedy(14, **ENDLESS), of("flood"))
    core.add("calm", [2] * 8, greedy(14, **ENDLESS), of("calm"))
    records = finish(core)
    lost = [one.request for record in records for one in record.preempted]
    assert joined(records)[:2] == ["flood0", "calm"]
    assert "flood0" not in lost
    assert lost.count("calm") <= 1
