"""Transfers that share links: when each ends, by hand."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.simulator.links import Links


def sent(bandwidth: float, latency: float, *flows: tuple[float, str, str, int]) -> list[float]:
    """When each ends, of (when, from, to, bytes)."""
    events: list[tuple[float, int, Callable[[float], None]]] = []
    ends: dict[int, float] = {}
    order = itertools.count()

    def at(time: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(events, (time, next(order), happen))

    links = Links(bandwidth, latency, at)
    for number, (when, *_) in enumerate(flows):

        def done(time: float, number: int = number) -> None:
            assert number not in ends
            ends[number] = time

        def begin(time: float, number: int = number) -> None:
            _, source, target, nbytes = flows[number]
            links.send(source, target, nbytes, time, lambda time: done(time, number))

        at(when, begin)
    while events:
        time, _, happen = heapq.heappop(events)
        happen(time)
    return [ends[number] for number in range(len(flows))]


def test_alone_it_takes_latency_and_bytes_over_bandwidth() -> None:
    assert sent(10.0, 0.5, (1.0, "a", "b", 100)) == [11.5]


def test_whoever_shares_an_end_shares_its_link() -> None:
    # Both at 5 a second until the smaller one has gone at 10; the other has 50 left then.
    assert sent(10.0, 0.0, (0.0, "a", "b", 50), (0.0, "a", "c", 100)) == [10.0, 15.0]
    assert sent(10.0, 0.0, (0.0, "a", "c", 50), (0.0, "b", "c", 100)) == [10.0, 15.0]
    # The second one comes when half of the first has gone.
    assert sent(10.0, 0.0, (0.0, "a", "b", 100), (5.0, "a", "c", 50)) == [15.0, 15.0]


def test_other_ends_are_other_links_and_each_way_is_its_own() -> None:
    assert sent(10.0, 0.0, (0.0, "a", "b", 100), (0.0, "b", "a", 100), (0.0, "c", "d", 10)) == [10.0, 10.0, 1.0]


@given(
    st.lists(st.tuples(st.floats(0, 9), st.sampled_from("ab"), st.sampled_from("cd"), st.integers(0, 99)), max_size=8)
)
def test_nothing_goes_faster_than_its_links_and_everything_comes(flows: list[tuple[float, str, str, int]]) -> None:
    ends = sent(10.0, 0.25, *flows)
    for end, (when, _, _, nbytes) in zip(ends, flows, strict=True):
        assert end >= when + 0.25 + nbytes / 10 - 1e-6
    for source in "ab":
        mine = [(end, flow) for end, flow in zip(ends, flows, strict=True) if flow[1] == source]
        if mine:
            first = min(when for _, (when, *_) in mine)
            assert max(end for end, _ in mine) >= first + 0.25 + sum(flow[3] for _, flow in mine) / 10 - 9 - 1e-6


def test_links_without_bandwidth_are_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Links(0.0, 0.0, lambda time, happen: None)
