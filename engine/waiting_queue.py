"""Requests that wait, in the order of the scheduling policy."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from engine.protocol import SchedulingPolicy
from engine.request import Request

Key = tuple[int, int]  # unlike for any two requests: its second part is their order of arrival


def arrival_key(request: Request) -> Key:
    return (0, request.sequence)


def priority_key(request: Request) -> Key:
    return (request.scheduling.priority, request.sequence)


def shortest_key(request: Request) -> Key:
    """By the tokens to compute before it answers, whatever the prefix cache may know of them by then."""
    return (request.num_tokens - request.num_swapped, request.sequence)


QUEUE_KEYS: dict[SchedulingPolicy, Callable[[Request], Key]] = {
    "fcfs": arrival_key,
    "priority": priority_key,
    "shortest_prefill": shortest_key,
    "fair": arrival_key,
}


class WaitingQueue:
    """Adding and removing cost a binary search; a request's key does not change while it waits."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._key = QUEUE_KEYS[policy]
        self._entries: list[tuple[Key, Request]] = []
        self._keys: dict[Request, Key] = {}
        self._by_arrival: dict[int, Request] = {}
        self._arrivals: list[int] = []  # a heap; those that left are dropped when they come up

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: Request) -> bool:
        return request in self._keys

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._entries)

    def add(self, request: Request) -> None:
        key = self._keys[request] = self._key(request)
        insort(self._entries, (key, request), key=_first)
        self._by_arrival[request.sequence] = request
        heapq.heappush(self._arrivals, request.sequence)

    def remove(self, request: Request) -> None:
        key = self._keys.pop(request)
        del self._by_arrival[request.sequence]
        del self._entries[bisect_left(self._entries, key, key=_first)]

    def oldest(self) -> Request | None:
        """The one that arrived first."""
        if len(self._arrivals) > 2 * len(self) + 64:  # most have left, behind one that stays
            self._arrivals = sorted(self._by_arrival)
        arrivals = self._arrivals
        while arrivals and arrivals[0] not in self._by_arrival:
            heapq.heappop(arrivals)
        return self._by_arrival[arrivals[0]] if arrivals else None

    def first(self, count: int, overdue_before: float | None = None) -> list[Request]:
        """The next `count` in turn; the oldest before all others if it arrived before `overdue_before`."""
        ahead = [request for _, request in self._entries[:count]]
        oldest = self.oldest()
        if oldest is not None and overdue_before is not None and oldest.arrived < overdue_before:
            ahead = [oldest, *(request for request in ahead if request is not oldest)]
        return ahead

    def reorder(self, policy: SchedulingPolicy) -> None:
        self._key = QUEUE_KEYS[policy]
        self._keys = {request: self._key(request) for request in self._keys}
        self._entries = sorted(((key, request) for request, key in self._keys.items()), key=_first)


def _first(entry: tuple[Key, Request]) -> Key:
    return entry[0]
