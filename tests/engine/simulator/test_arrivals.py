"""Who arrives when, also in chats, at other speeds and in repetitions."""

from __future__ import annotations

import pytest

from engine.simulator.arrivals import Arrivals
from tests.engine.simulator.traces import traced

CHAT = (
    traced(10.0, 1, (1, 4)),
    traced(12.0, 1, (1, 4), after=0, think=2.0),
    traced(14.0, 1, (3, 4)),
    traced(15.0, 1, (1, 4), after=1, think=3.0),
)


def taken(arrivals: Arrivals, now: float) -> list[tuple[str, float]]:
    return [(arrival.id, arrival.time) for arrival in arrivals.due(now)]


def test_requests_come_at_their_time_and_the_first_at_zero() -> None:
    arrivals = Arrivals([traced(at, 1, (1, 4)) for at in (5.0, 5.0, 7.0)], 3)
    assert arrivals.next_time == 0.0
    assert taken(arrivals, 1.9) == [("0", 0.0), ("1", 0.0)]
    assert arrivals.next_time == 2.0
    assert taken(arrivals, 2.0) == [("2", 2.0)]
    assert arrivals.next_time is None


def test_speed_divides_arrivals_and_think_times() -> None:
    arrivals = Arrivals(CHAT, 4, speed=2.0)
    (first,) = arrivals.due(0.0)
    arrivals.ended(first, 0.5)
    assert taken(arrivals, 10.0) == [("1", 1.5), ("2", 2.0)]


def test_a_turn_waits_for_the_one_before_and_thinks() -> None:
    arrivals = Arrivals(CHAT, 4)
    (first,) = arrivals.due(3.9)
    arrivals.ended(first, 100.0)
    assert taken(arrivals, 101.9) == [("2", 4.0)]
    assert arrivals.next_time == 102.0
    (second,) = arrivals.due(103.0)
    assert second.traced is CHAT[1]
    arrivals.ended(second, 104.0)
    assert taken(arrivals, 107.0) == [("3", 107.0)]


def test_turns_after_one_that_failed_are_not_sent() -> None:
    arrivals = Arrivals(CHAT, 4)
    (first,) = arrivals.due(0.0)
    arrivals.failed(first)
    assert arrivals.unsent == 2
    assert taken(arrivals, 1000.0) == [("2", 4.0)]
    assert arrivals.next_time is None


def test_a_repetition_begins_a_mean_gap_after_the_end() -> None:
    arrivals = Arrivals([traced(at, 1, (1, 4)) for at in (0.0, 1.0, 4.0)], 7)
    assert [time for _, time in taken(arrivals, 100.0)] == [0.0, 1.0, 4.0, 6.0, 7.0, 10.0, 12.0]
    one = Arrivals([traced(3.0, 1, (1, 4))], 3)
    assert [time for _, time in taken(one, 0.0)] == [0.0, 0.0, 0.0]


def test_a_cut_repetition_leaves_later_turns_out() -> None:
    arrivals = Arrivals(CHAT, 5)
    for arrival in arrivals.due(1000.0):
        arrivals.ended(arrival, arrival.time)
    assert taken(arrivals, 1000.0) == []
    assert arrivals.next_time is None


def test_every_request_of_every_repetition_comes_once() -> None:
    arrivals = Arrivals(CHAT, 10)
    ids = []
    for arrival in arrivals.due(1000.0):
        ids.append(int(arrival.id))
        assert arrival.round == int(arrival.id) // 4
        arrivals.ended(arrival, arrival.time)
    assert sorted(ids) == list(range(10))


@pytest.mark.parametrize(("requests", "speed"), [(0, 1.0), (1, 0.0), (1, -1.0), (1, float("nan"))])
def test_what_cannot_be_played(requests: int, speed: float) -> None:
    with pytest.raises(ValueError, match="at least 1 and speed above 0"):
        Arrivals(CHAT, requests, speed)
