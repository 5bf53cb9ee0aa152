"""Requests that wait, in the order of the scheduling policy."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Protocol

from engine.fair_shares import FairShares
from engine.protocol import SchedulingPolicy
from engine.request import Request

Key = tuple[int, int]  # unlike for any two requests: its second part is their order of arrival
HeadKey = tuple[int, int, int]  # of a client's line: whether it must be charged, its tag or its turn, and the arrival
_key_of: Callable[[tuple[Key, Request]], Key] = itemgetter(0)


def arrival_key(request: Request) -> Key:
    return (0, request.sequence)


def priority_key(request: Request) -> Key:
    return (request.scheduling.priority, request.sequence)


def shortest_key(request: Request) -> Key:
    """By the tokens to compute before it answers, whatever the prefix cache may know of them by then."""
    there = request.num_swapped if request.incoming is None else request.incoming.offer.tokens
    return (request.num_tokens - there, request.sequence)


def turn_key(request: Request) -> Key:
    """By the turn in which it was first admitted: only for those that were."""
    assert request.turn is not None, f"request {request.id} was never admitted"
    return (request.turn, request.sequence)


QUEUE_KEYS: dict[SchedulingPolicy, Callable[[Request], Key]] = {
    "fcfs": arrival_key,
    "priority": priority_key,
    "shortest_prefill": shortest_key,
}


def running_key(policy: SchedulingPolicy) -> Callable[[Request], Key]:
    """Shortest first is for those that wait; who runs keeps the order of arrival, or of clients' turns."""
    match policy:
        case "priority":
            return priority_key
        case "fair":
            return turn_key
        case _:
            return arrival_key


class Order(Protocol):
    """Requests in the order in which they are to be admitted."""

    def add(self, request: Request, /) -> None: ...

    def remove(self, request: Request, /) -> None:
        """Raises KeyError for one that is not there."""

    def first(self, count: int, barred: Container[str] = (), /) -> list[Request]:
        """Without those of `barred` clients, where clients are told apart."""

    def first_of(self, client: str, /) -> Request | None:
        """A client's first; None if it has none, or where clients are not told apart."""

    def retag(self, client: str, /) -> None:
        """A client's tag is another now."""


class KeyOrder:
    """By a key that does not change while a request waits. Adding and removing cost a binary search."""

    def __init__(self, key: Callable[[Request], Key], requests: Iterable[Request] = ()) -> None:
        self._key = key
        self._keys = {request: key(request) for request in requests}
        self._entries = sorted(((key, request) for request, key in self._keys.items()), key=_key_of)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, place: int) -> Request:
        return self._entries[place][1]

    def add(self, request: Request) -> None:
        key = self._keys[request] = self._key(request)
        insort(self._entries, (key, request), key=_key_of)

    def remove(self, request: Request) -> None:
        key = self._keys.pop(request)
        del self._entries[bisect_left(self._entries, key, key=_key_of)]

    def first(self, count: int, barred: Container[str] = ()) -> list[Request]:
        return [request for _, request in self._entries[:count]]

    def first_of(self, client: str) -> Request | None:
        """It knows no clients."""
        return None

    def retag(self, client: str) -> None:
        """It knows no clients."""


class FairOrder:
    """Each client's requests by arrival, and of the clients the one with the least tag.

    One that was preempted has been charged: it comes before all that have not, once it is the first of its client.
    """

    def __init__(self, shares: FairShares, requests: Iterable[Request] = ()) -> None:
        self._shares = shares
        self._lines: dict[str, KeyOrder] = {}
        self._keys: dict[str, HeadKey] = {}
        self._heads: list[tuple[HeadKey, str]] = []  # of all lines, in order
        for request in requests:
            self.add(request)

    def add(self, request: Request) -> None:
        client = request.scheduling.client
        self._lines.setdefault(client, KeyOrder(arrival_key)).add(request)
        self.retag(client)

    def remove(self, request: Request) -> None:
        client = request.scheduling.client
        self._lines[client].remove(request)
        self.retag(client)

    def first(self, count: int, barred: Container[str] = ()) -> list[Request]:
        """As they would come if each of them was admitted in turn."""
        clients = islice((client for _, client in self._heads if client not in barred), count)
        heads = [_Head(self._lines[client], self._shares.tag(client)) for client in clients]
        ahead: list[Request] = []
        while heads and len(ahead) < count:  # sorted, so it is a heap
            head = heads[0]
            ahead.append(head.request)
            if head.place + 1 == len(head.line):
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, head.next())
        return ahead

    def first_of(self, client: str) -> Request | None:
        line = self._lines.get(client)
        return line[0] if line else None

    def retag(self, client: str) -> None:
        line = self._lines.get(client)
        if client in self._keys:
            del self._heads[bisect_left(self._heads, (self._keys.pop(client), client))]
        if line:
            key = self._keys[client] = _Head(line, self._shares.tag(client)).key
            insort(self._heads, (key, client))
        elif line is not None:
            del self._lines[client]


class _Head:
    """Where a client's line has come to."""

    __slots__ = ("key", "line", "place", "request", "tag")

    def __init__(self, line: KeyOrder, tag: int, place: int = 0) -> None:
        self.line = line
        self.tag = tag
        self.place = place
        self.request = request = line[place]
        self.key: HeadKey = (1, tag, request.sequence) if request.turn is None else (0, *turn_key(request))

    def __lt__(self, other: _Head) -> bool:
        return self.key < other.key

    def next(self) -> _Head:
        charge = cost(self.request) if self.request.turn is None else 0
        return _Head(self.line, self.tag + charge, self.place + 1)


def cost(request: Request) -> int:
    """The tokens that a request asks for, with those to be forked off it, which share its prompt."""
    output = request.token_limit - request.prompt_length
    return request.token_limit + len(request.children) * output


class WaitingQueue:
    """Requests by policy and by arrival. Clients are charged under every policy, so that `fair` may be chosen."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.shares = FairShares()
        self._by_arrival: dict[int, Request] = {}
        self._arrivals: list[int] = []  # a heap; those that left are dropped when they come up
        self._order = self._ordered(policy)

    def __len__(self) -> int:
        return len(self._by_arrival)

    def __contains__(self, request: Request) -> bool:
        return request.sequence in self._by_arrival

    def __iter__(self) -> Iterator[Request]:
        return iter(self._order.first(len(self)))

    def add(self, request: Request) -> None:
        self.shares.arrive(request.scheduling.client)
        self._order.add(request)
        self._by_arrival[request.sequence] = request
        heapq.heappush(self._arrivals, request.sequence)

    def remove(self, request: Request) -> None:
        self._order.remove(request)
        del self._by_arrival[request.sequence]
        self.shares.leave(request.scheduling.client)

    def admit(self, request: Request) -> None:
        """Remove one that joins the batch. The first time its client is charged for it, and for those to be forked."""
        if request.turn is not None:
            self.remove(request)
            return
        turn = self.shares.charge(request.scheduling.client, cost(request))
        self.remove(request)
        for one in (request, *request.children):
            one.turn = turn

    def settle(self, request: Request) -> None:
        """One has ended, waiting or not: if its client was charged, it gets back what the answer did not use."""
        if request.turn is not None:
            client = request.scheduling.client
            self.shares.give_back(client, request.token_limit - request.num_tokens, request.turn)
            self._order.retag(client)

    def oldest(self) -> Request | None:
        """The one that arrived first."""
        if len(self._arrivals) > 2 * len(self) + 64:  # most have left, behind one that stays
            self._arrivals = sorted(self._by_arrival)
        arrivals = self._arrivals
        while arrivals and arrivals[0] not in self._by_arrival:
            heapq.heappop(arrivals)
        return self._by_arrival[arrivals[0]] if arrivals else None

    def first(self, count: int, overdue_before: float | None = None, barred: Container[str] = ()) -> list[Request]:
        """The next `count` in turn; the oldest before all others if it arrived before `overdue_before`. Under `fair`
        none of the clients that are `barred`."""
        ahead = self._order.first(count, barred)
        oldest = self.oldest()
        if oldest is not None and overdue_before is not None and oldest.arrived < overdue_before:
            ahead = [oldest, *(request for request in ahead if request is not oldest)]
        return ahead

    def first_of(self, client: str) -> Request | None:
        """A client's next under `fair`; None if it has none, and under other policies."""
        return self._order.first_of(client)

    def reorder(self, policy: SchedulingPolicy) -> None:
        self._order = self._ordered(policy)

    def _ordered(self, policy: SchedulingPolicy) -> Order:
        requests = self._by_arrival.values()
        if policy == "fair":
            return FairOrder(self.shares, requests)
        return KeyOrder(QUEUE_KEYS[policy], requests)
