"""Journeys at their edge: chooses the workers, sends what a journey says, and tells it and its client what comes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from engine.cluster.block_index import prompt_names
from engine.cluster.journey import MOST_MOVES, Journey
from engine.cluster.leases import Leases
from engine.cluster.loads import Work
from engine.cluster.protocol import ClusterControl, Role, TransferDone
from engine.cluster.router import Purpose, Router
from engine.core_client import CoreClient, EngineDiedError, Sink
from engine.messages import Add, Output, Taken
from engine.protocol import FinishReason, Receiving

NOBODY: frozenset[str] = frozenset()
PATIENCE = 30.0  # seconds that a request waits for a worker that can take it
QUIET = 5.0  # seconds in which nothing came of a worker that has requests: others of its role are preferred
SILENT = 30.0  # then any others are
LATE = 5.0  # seconds after a deadline: an engine that has not ended the request by then is stopped, or hangs


class Place(Protocol):
    """A worker, as far as requests are sent there; `client` is that of its newest core."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def client(self) -> CoreClient | None: ...


class Chosen(NamedTuple):
    """The worker, what it has cached of the prompt, and whether it is to hand the request over; `is_local`: it is not,
    though there are others for that."""

    worker: str
    cached: int
    is_prefill: bool = False
    is_local: bool = False


class Way:
    """A journey, and who waits for it. `at` and `client` are the worker that has it and its engine's client."""

    __slots__ = (
        "answer", "at", "been", "client", "is_cancelled", "journey", "names", "sink", "waits_since", "why", "work",
    )  # fmt: skip

    def __init__(self, journey: Journey, sink: Sink, answer: str, names: tuple[int, ...]) -> None:
        self.journey = journey
        self.sink = sink
        self.answer = answer
        self.names = names  # of the prompt's blocks, as far as they may be found
        self.at: str = ""
        self.client: CoreClient | None = None
        self.work: Work | None = None
        self.been: dict[CoreClient, str] = {}  # of engines that may still know its requests by their names; workers
        self.is_cancelled = False  # an engine is to tell what there is, and will unless it dies before
        self.waits_since: float | None = None  # for a worker that can take it
        self.why = ""  # what last happened to the engine that had it


class Placed(NamedTuple):
    """An offer that one engine is to take of another. `source` None: that had died by then."""

    way: Way
    source: CoreClient | None
    target: CoreClient


class Dispatcher:
    """All requests that live, by their names. `places` are the workers, by name, as they come and go; `changed` is
    called when transfers do, `ended` with each that has. `soon` calls something when what is told now has been told."""

    def __init__(
        self,
        places: Mapping[str, Place],
        router: Router,
        control: ClusterControl,
        changed: Callable[[], None] = lambda: None,
        ended: Callable[[TransferDone], None] = lambda done: None,
        clock: Callable[[], float] = time.monotonic,
        soon: Callable[[Callable[[], None]], object] = lambda done: asyncio.get_running_loop().call_soon(done),
    ) -> None:
        self.router = router
        self.control = control
        self.leases = Leases()
        self.live: dict[str, Way] = {}
        self.local = 0  # prefilled where they decode, though there were others for that
        self.recovered = 0  # went on elsewhere
        self.begun = 0  # answers: a request and each of its siblings; a beam search is one
        self.ended: Counter[FinishReason] = Counter()  # answers, each once, as their clients were told or asked for
        self._places = places
        self._changed = changed
        self._ended = ended
        self._clock = clock
        self._soon = soon
        self._waiting: dict[Way, None] = {}
        self._at: dict[CoreClient, dict[Way, None]] = {}  # those that have a client, by it
        self._timed: dict[Way, None] = {}  # with a deadline; also some that have ended
        self._placed: dict[str, Placed] = {}  # by the lease that an engine reads, or has yet to
        self._quiet: set[str] = set()  # workers, when last looked at
        self._silent: set[str] = set()
        self._losing: set[CoreClient] = set()  # engines that are known to be gone, and what they had is to be moved

    @property
    def now(self) -> float:
        """On the clock of all that is told here."""
        return self._clock()

    @property
    def num_waiting(self) -> int:
        """Requests that no worker can take now."""
        return len(self._waiting)

    # Clients

    def add(self, message: Add, sink: Sink, answer: str) -> None:
        """Start a request and its siblings, as `CoreClient.add` does. Raises ValueError for one that lives."""
        journey = Journey(message, self._clock())
        for request in journey.live:
            if request in self.live:
                raise ValueError(f"request {request} lives already")
        found = message.scheduling.prefix_cache and message.sampling.prompt_logprobs is None
        salt = message.scheduling.cache_salt
        names = prompt_names(message.prompt, self.router.block_size, salt) if found else ()
        way = Way(journey, sink, answer, names)
        self.begun += len(journey.live)
        self.live.update(dict.fromkeys(journey.live, way))
        if message.scheduling.timeout is not None:
            self._timed[way] = None
        self._send_on(way)

    def abort(self, requests: Iterable[str], reason: FinishReason) -> None:
        """End those that live; their sinks hear no more."""
        for way, mine in self._by_way(requests).items():
            self._end(way, mine, reason)

    def cancel(self, name: str) -> tuple[str, ...]:
        """Abort a live request, and whoever cannot go on without it, or all of an answer; their sinks hear of it."""
        named = [request for request, way in self.live.items() if name in (request, way.answer)]
        if not named:  # a beam, whose search reports for it?
            named = [one for one, way in self.live.items() if name in way.journey.message.siblings]
        family = [one for request in named for one in (request, *self._tied(request))]
        return self._cancel(family)

    def cancel_all(self) -> None:
        self._cancel(tuple(self.live))

    def _tied(self, request: str) -> tuple[str, ...]:
        """Who cannot go on without this one: its siblings, until it has a token."""
        journey = self.live[request].journey
        return journey.message.siblings if request == journey.message.request and not journey.has_tokens else ()

    def _cancel(self, requests: Iterable[str]) -> tuple[str, ...]:
        ended: list[str] = []
        for way, mine in self._by_way(requests).items():
            ended += mine
            if way.journey.is_search and way.journey.is_at_engine and way.client is not None:
                way.is_cancelled = True
                with contextlib.suppress(EngineDiedError):
                    way.client.cancel(way.journey.message.request)  # it will tell what it has found
                continue
            self._end(way, mine, "abort")
            for request in mine:
                way.sink(Output(request, finished="abort"))
        return tuple(ended)

    def _by_way(self, requests: Iterable[str]) -> dict[Way, list[str]]:
        found: dict[Way, list[str]] = {}
        for request in dict.fromkeys(requests):
            if (way := self.live.get(request)) is not None:
                found.setdefault(way, []).append(request)
        return found

    def _end(self, way: Way, requests: Sequence[str], reason: FinishReason) -> None:
        """Nobody waits for these any more."""
        journey = way.journey
        ended = journey.end(requests)
        self.ended[reason] += len(ended)
        for request in ended:
            self.live.pop(request, None)
        if way.client is not None and way.client.death is None:
            way.client.abort(ended, reason)
        self._go_on(way, len(ended))

    # Engines

    def serves(self) -> None:
        """A worker has come that may take what waits."""
        waiting, self._waiting = self._waiting, {}
        for way in waiting:
            self._send_on(way)

    def lost(self, client: CoreClient, name: str, why: str) -> None:
        """An engine has died: what it had goes on elsewhere, and what was kept for it is kept no more."""
        self._losing.discard(client)
        ways = self._ways_of(client)
        place = self._places.get(name)
        if place is not None and place.client is client:  # else another has the name by now, and this was told before
            self.router.close(name)
            self.router.forget(name)
            for lease, source in self.leases.without_target(name):
                self._release(source, lease)
                if (placed := self._placed.pop(lease, None)) is not None:
                    self._is_rid_of(placed.source, placed.way)
            offers = ((way, way.journey.offer) for way in self._waiting)
            ways += [way for way, offer in offers if offer is not None and offer.engine == name]
        for way in ways:
            self._leave(way)
            self._move(way, why)

    def move_away(self, client: CoreClient, why: str) -> None:
        """An engine is to go: what it still has goes on elsewhere."""
        for way in self._ways_of(client):
            client.abort(tuple(way.journey.live), "abort")
            self._leave(way)
            self._move(way, why, by_death=False)

    def overdue(self, client: CoreClient, lease: str, why: str) -> None:
        """An engine has not been told whether blocks that it was offered are there, and keeps their places: whoever was
        to go on with them goes on elsewhere."""
        self.leases.overdue(lease)
        self._changed()
        placed = self._placed.get(lease)
        if placed is not None and placed.way.client is client:
            client.abort(tuple(placed.way.journey.live), "abort")
            self._leave(placed.way)
            self._move(placed.way, why)

    def has(self, name: str, client: CoreClient | None) -> bool:
        """Whether a worker still has something to do, or keeps something for another."""
        return client in self._at or self.leases.is_part(name)

    def taken(self, told: Taken) -> None:
        """An engine reads an offer no more."""
        placed = self._placed.pop(told.lease, None)
        if told.error and placed is not None and placed.way.journey.live and placed.way.client is not placed.target:
            told = msgspec.structs.replace(told, error=f"the request went on elsewhere: {placed.way.why}")
        done = self.leases.taken(told, self._clock(), time.time())
        if done is not None:
            self._release(done.source, told.lease)
            self._ended(done)
            self._changed()
        if placed is None:
            return
        placed.way.journey.taken(told.lease)
        if placed.way.client is not placed.target:
            placed.way.been.pop(placed.target, None)
        self._is_rid_of(placed.source, placed.way)

    def moving(self, receiving: Receiving) -> None:
        """An engine fills blocks with what it was offered."""
        self.leases.moving(receiving.lease, receiving.blocks, receiving.nbytes)
        self._changed()

    def left_over(self, name: str, output: Output) -> None:
        """An engine offers what nobody waits for any more."""
        if output.offer is not None:
            self._release(name, output.offer.lease)

    def review(self) -> None:
        """End what has waited too long for a worker, or should have been ended by an engine; see who is quiet."""
        now = self._clock()
        clients = [(name, place.client) for name, place in self._places.items()]
        quiet = {name: client.quiet for name, client in clients if client is not None}
        self._quiet, self._silent = ({name for name in quiet if quiet[name] > most} for most in (QUIET, SILENT))
        for way in tuple(self._timed):
            left = way.journey.seconds_left(now)
            if not way.journey.live:
                del self._timed[way]
            elif left is not None and left < -LATE:
                self._pass(way)
        for way in tuple(self._waiting):
            left = way.journey.seconds_left(now)
            if left is not None and left <= 0:
                self._pass(way)
            elif way.waits_since is not None and now - way.waits_since > PATIENCE:
                why = f"no engine could take this request for {PATIENCE:g} s"
                self._give_up(way, f"{way.why}; {why}" if way.why else why)

    def give_up_waiting(self, why: str) -> None:
        """No worker will come that could take what waits."""
        for way in tuple(self._waiting):
            self._give_up(way, f"{way.why}; {why}" if way.why else why)

    # Within

    def _ways_of(self, client: CoreClient) -> list[Way]:
        return list(self._at.get(client, ()))

    def _send_on(self, way: Way) -> None:
        """Have a worker do what is next; if none can, wait for one."""
        gone: set[str] = set()  # have died, and that has yet to be told
        while True:
            chosen = self._chosen(way, gone)
            if chosen is None:
                self._wait(way)
                return
            client = self._places[chosen.worker].client
            if client is not None and client.ready:
                way.waits_since = None
                self.local += chosen.is_local
                self._send(way, chosen.worker, client, chosen.cached, chosen.is_prefill)
                return
            gone.add(chosen.worker)

    def _chosen(self, way: Way, gone: set[str]) -> Chosen | None:
        """Where nobody decodes, or all who do are silent, a prefill worker serves it whole. Better one that is silent
        than none."""
        for choose, passed_over in (
            (self._choose, self._quiet),
            (self._choose, self._silent),
            (self._stand_in, self._quiet),
            (self._stand_in, self._silent),
            (self._choose, NOBODY),
            (self._stand_in, NOBODY),
        ):
            if (chosen := choose(way, gone, passed_over)) is not None:
                return chosen
        return None

    def _stand_in(self, way: Way, gone: Set[str], passed_over: Set[str]) -> Chosen | None:
        """What it was offered is of no use: whoever computed that finds it in its cache."""
        router, offer, avoid = self.router, way.journey.offer, gone | passed_over
        if offer is not None:
            if not router.can("prefill", avoid | self._knowing(way) - {offer.engine}):
                return None
            self._withdraw(way)
        avoid, length = avoid | self._knowing(way), self._length(way.journey)
        if offer is not None and offer.engine not in avoid and router.is_open(offer.engine):
            cached = router.block_size * ((len(way.journey.message.prompt) - 1) // router.block_size)
            return Chosen(offer.engine, cached)
        target = router.choose("prefill", length, way.names, way.journey.rows, avoid)
        return None if target is None else Chosen(target.worker, target.cached_tokens)

    def _knowing(self, way: Way) -> set[str]:
        """Workers whose engines have had it, and may not be rid of it yet."""
        there = ((self._places.get(name), client) for client, name in way.been.items())
        return {place.name for place, client in there if place is not None and place.client is client}

    def _is_rid_of(self, source: CoreClient | None, way: Way) -> None:
        """With an offer that nobody reads any more, its engine is rid of the requests too, and may be given them again:
        perhaps they wait for nobody else."""
        if source is not None:
            way.been.pop(source, None)
        if way in self._waiting:
            del self._waiting[way]
            self._send_on(way)

    def _choose(self, way: Way, gone: Set[str], passed_over: Set[str]) -> Chosen | None:
        journey, router, control = way.journey, self.router, self.control
        length, rows, gone = self._length(journey), journey.rows, gone | self._knowing(way)
        avoid = gone | passed_over
        purpose: Purpose = "whole" if journey.offer is None else "decode"
        target = router.choose(purpose, length, way.names, rows, avoid)
        if target is None:
            return None
        is_decode = self._places[target.worker].role == "decode"
        if purpose == "decode" and not is_decode:  # replicas compute for themselves what others have
            replicas = {place.name for place in self._places.values() if place.role == "replica"}
            target = router.choose(purpose, length, way.names, rows, avoid | replicas) or target
        whole = Chosen(target.worker, target.cached_tokens)
        if not is_decode or not control.separate or journey.has_tokens or journey.is_search:
            return whole
        if length - target.cached_tokens <= control.local_prefill:
            return whole._replace(is_local=router.can("prefill", avoid))
        prefill = router.choose("prefill", length, way.names, rows, avoid)
        if prefill is None and passed_over:  # a long step of theirs is no reason for long prompts to be among decodes
            prefill = router.choose("prefill", length, way.names, rows, gone | self._silent)
        return whole if prefill is None else Chosen(prefill.worker, prefill.cached_tokens, is_prefill=True)

    @staticmethod
    def _length(journey: Journey) -> int:
        """Tokens that an engine computes of it where nothing is cached and none is offered, before it generates."""
        return len(journey.message.prompt) + (journey.generated if journey.offer is None else 0)

    def _send(self, way: Way, worker: str, client: CoreClient, cached: int, is_prefill: bool) -> None:
        journey, now = way.journey, self._clock()
        offer, length = journey.offer, self._length(journey)
        adds = (journey.prefill(now),) if is_prefill else journey.decode(now)
        rows = 0 if is_prefill else journey.rows
        way.at, way.client = worker, client
        way.been[client] = worker
        self._at.setdefault(client, {})[way] = None
        way.work = self.router.begin(worker, length, cached, way.names, rows, computed=offer is not None)
        if offer is not None:
            source = self._places.get(offer.engine)
            self._placed[offer.lease] = Placed(way, None if source is None else source.client, client)
            self.leases.placed(offer.lease, worker)
            self._changed()
        sink = partial(self._hear, way, journey.leg)
        for add in adds:
            client.add(add, sink, way.answer)

    def _wait(self, way: Way) -> None:
        if way.waits_since is None:
            way.waits_since = self._clock()
        self._waiting[way] = None

    def _hear(self, way: Way, leg: int, output: Output) -> None:
        journey, client = way.journey, way.client
        if leg != journey.leg or client is None:
            return
        if output.unavailable:  # all that it had is told so, one by one
            if client not in self._losing:
                self._losing.add(client)
                self._soon(partial(self.lost, client, way.at, f"{way.at}: {output.error}"))
            return
        told = journey.hear(output, leg)
        if told is None:
            return
        if output.token_id is not None and way.work is not None:
            way.work.computed()
        if told.finished is not None:
            self.live.pop(output.request, None)
            self.ended[told.finished] += 1
        if output.offer is not None:
            self.leases.offered(journey.message.request, output.offer, way.at, self._clock())
            self._changed()
        way.sink(told)
        self._go_on(way, 1 if told.finished is not None else 0)

    def _go_on(self, way: Way, ended: int) -> None:
        """After news, or an abort: its next leg, or its end."""
        journey = way.journey
        if journey.state == "offered" and way.client is not None:
            self._leave(way)
            self._send_on(way)
        elif journey.state == "ended":
            self._leave(way)
            self._waiting.pop(way, None)
            self._withdraw(way)
        elif ended and way.work is not None:
            way.work.end_rows(ended)

    def _leave(self, way: Way) -> None:
        if way.work is not None:
            way.work.end()
        if way.client is not None:
            ways = self._at[way.client]
            del ways[way]
            if not ways:
                del self._at[way.client]
        way.work = way.client = None
        way.at = ""

    def _withdraw(self, way: Way) -> None:
        """Nobody is to take its offer."""
        if (offer := way.journey.withdraw()) is None:
            return
        if (source := self.leases.drop(offer.lease)) is not None:
            self._release(source, offer.lease)
            self._changed()
        for client in [client for client, name in way.been.items() if name == offer.engine]:
            del way.been[client]  # with its offer the engine is rid of the requests

    def _move(self, way: Way, why: str, *, by_death: bool = True) -> None:
        """It has no engine any more, for this reason."""
        self._waiting.pop(way, None)
        self._withdraw(way)
        way.why, way.waits_since = why, None
        if way.is_cancelled:
            self._fail(way, Output("", finished="abort"))
        elif way.journey.lost(by_death=by_death):
            self.recovered += 1
            self._send_on(way)
        else:
            self._give_up(way, f"{why}; the request had gone on elsewhere {MOST_MOVES} times before")

    def _give_up(self, way: Way, why: str) -> None:
        self._fail(way, Output("", finished="error", error=why, unavailable=True))

    def _pass(self, way: Way) -> None:
        """Its deadline has passed."""
        self._fail(way, Output("", finished="deadline"))

    def _fail(self, way: Way, told: Output) -> None:
        """End all of it, and tell each so."""
        assert told.finished is not None
        requests = tuple(way.journey.live)
        self._end(way, requests, told.finished)
        for request in requests:
            way.sink(msgspec.structs.replace(told, request=request))

    def _release(self, source: str, lease: str) -> None:
        """Nobody reads this offer any more."""
        place = self._places.get(source)
        if place is None or place.client is None:
            return
        with contextlib.suppress(EngineDiedError):  # it keeps nothing
            place.client.release((lease,))
