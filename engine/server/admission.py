"""The queue's limits: how many requests may wait for their first token, of all clients and of each.

Every choice is a request of its own, and every beam of a search; of a search no token is told before its end.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from engine.server.errors import ApiError
from engine.server.settings import Limits

LEAST_RETRY, MOST_RETRY = 1, 60  # seconds
LATEST = 64  # first tokens over which their rate is measured


class Asked(NamedTuple):
    """How many requests one HTTP request makes; `field` is to blame if they are too many."""

    requests: int
    field: str


class Line:
    """Those who wait, and how fast they got their first tokens lately."""

    def __init__(self, now: float) -> None:
        self.waiting = 0
        self._times = deque([now], maxlen=LATEST + 1)  # of the latest first tokens; before there are any, of its begin

    def got_token(self, now: float, count: int) -> None:
        self._times.extend([now] * min(count, LATEST))

    def seconds_until(self, places: int, now: float) -> int:
        """When so many more will have left, if it goes on as it lately did: whole seconds, from 1 to 60.

        Where none has got a token yet, as if the first came now.
        """
        came = max(1, len(self._times) - 1)
        seconds = places * (now - self._times[0]) / came
        return min(MOST_RETRY, max(LEAST_RETRY, math.ceil(seconds)))


class Ticket:
    """The places in the queue of one HTTP request; each is given back once, whatever happens first."""

    def __init__(self, admission: Admission, client: str, places: Mapping[str, int]) -> None:
        self._admission = admission
        self._client = client
        self._places = dict(places)

    def got_token(self, request: str) -> None:
        """A request has its first token; of later ones nothing is heard."""
        if self._places and (count := self._places.pop(request, 0)):
            self._admission._give_back(self._client, count, got_token=True)

    def ended(self, request: str) -> None:
        """It ended, perhaps without a token."""
        if self._places and (count := self._places.pop(request, 0)):
            self._admission._give_back(self._client, count, got_token=False)

    def close(self) -> None:
        """Give back what is left: the client has its answer, or has left."""
        left, self._places = sum(self._places.values()), {}
        if left:
            self._admission._give_back(self._client, left, got_token=False)


class Admission:
    """Counts requests that have no token yet, and refuses those that would be too many."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._all = Line(clock())
        self._clients: dict[str, Line] = {}  # those that have a request waiting

    @property
    def waiting(self) -> int:
        return self._all.waiting

    def waiting_of(self, client: str) -> int:
        line = self._clients.get(client)
        return 0 if line is None else line.waiting

    def check(self, client: str, asked: Asked) -> None:
        """Whether so many requests of a client may wait now.

        Raises:
            ApiError: 400 if they are more than may ever wait, 429 (with Retry-After) if others wait already.
        """
        limits = self._limits
        kinds = (
            ("--max-queue", limits.max_queue, self._all, "requests"),
            (
                "--max-queue-per-client",
                limits.max_queue_per_client,
                self._clients.get(client),
                "this client's requests",
            ),
        )
        for flag, limit, _, _ in kinds:
            if asked.requests > limit:
                raise ApiError(
                    f"{asked.field}: makes {asked.requests:,} requests, and at most {limit:,} may wait ({flag})",
                    param=asked.field,
                )
        for flag, limit, line, whose in kinds:
            if line is not None and line.waiting + asked.requests > limit:
                seconds = line.seconds_until(line.waiting + asked.requests - limit, self._clock())
                taken = "1 is" if line.waiting == 1 else f"{line.waiting:,} are"
                raise ApiError(
                    f"the queue is full: of {limit:,} places ({flag}) {taken} taken by {whose} that wait for a first "
                    f"token, and this needs {asked.requests:,}; try again in {seconds} s",
                    status=429,
                    code="queue_full",
                    headers={"Retry-After": str(seconds)},
                )

    def enter(self, client: str, places: Mapping[str, int], field: str) -> Ticket:
        """Let requests wait, each with as many places as it makes in the core. Raises ApiError as `check` does."""
        count = sum(places.values())
        self.check(client, Asked(count, field))
        if not self._all.waiting:
            self._all = Line(self._clock())
        if client not in self._clients:
            self._clients[client] = Line(self._clock())
        self._all.waiting += count
        self._clients[client].waiting += count
        return Ticket(self, client, places)

    def _give_back(self, client: str, count: int, *, got_token: bool) -> None:
        mine = self._clients[client]
        for line in (self._all, mine):
            line.waiting -= count
            if got_token:
                line.got_token(self._clock(), count)
        if not mine.waiting:
            del self._clients[client]
