"""One server, asked again and again: its metrics, llama.cpp's slots, and what it publishes of its KV cache.

Each has a connection and tasks of its own, so that one that hangs holds up nobody.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import aclosing

from servers.dialects import BY_KIND
from servers.kv_events import Message, to_builtins
from servers.reading import lines_known
from servers.slots import Slot, read_slots
from tui.sources.clock import now
from tui.sources.finder import Found, NotFound, ask_version, find, kind_of, line, refused
from tui.sources.http import Answer, Http, NoAnswer, TooMuch
from tui.sources.items import Failed, FailedPhase, Item, KvLink, KvMessage, KvPhase, Scrape, Slots, SourceHead
from tui.sources.targets import HttpSettings, KvEndpoint, Target
from tui.together import ended

LEAST_TIMEOUT = 5.0  # seconds for a whole answer, and
TIMEOUT_LOOKS = 3  # so many times the time between two looks
REST = 20.0  # so many times as long as reading a page took this program, it is left alone then: others have pages too
SLICE = 5.0  # seconds after which one that waits for long looks if it still must
FIRST_WHY = 0.3  # seconds until it is asked why a publisher is not connected to, and then between two times
WHY_SECONDS = 5.0
FOREIGN_SECONDS = 5.0  # between two looks at what is no server known here: each asks at several paths


class Poller:
    """Run it in a task. `sink` gets what is heard, in order; the poller itself keeps no figures."""

    def __init__(
        self,
        target: Target,
        settings: HttpSettings,
        sink: Callable[[Item], None],
        source: int,
        every: float = 1.0,
        clock: Callable[[], float] = now,
        beside: Callable[[str, Message], None] | None = None,
        shift: float = 0.0,
        times: Callable[[], int] = lambda: 1,
    ) -> None:
        """`source` is the number that its items have, `every` the seconds from one look to the next, `times` as many
        where many servers are looked at. From the second on, looks are `shift` seconds earlier than they would be.

        `beside` is told each KV message of an endpoint as it came, with token ids, once `sink` has its item without.
        """
        self.target = target
        self._settings = settings
        self._sink = sink
        self._source = source
        self._every = every
        self._paced = every  # as it turned out
        self._clock = clock
        self._beside_items = beside
        self._shift, self._times = shift, times
        self._found: Found | None = None
        self._version = ""
        self._asking: asyncio.Task[None] | None = None  # for its version: nothing waits for that
        self._slots = True  # whether it tells its slots, as far as is known,
        self._told_slots = False  # and whether it did the last time
        self._failing = False
        self._work = 0.0  # seconds that reading the last page took this program

    async def run(self) -> None:
        """Look until cancelled. Never two looks at once: one that takes too long leaves out the next."""
        self._tell_head()
        events = [asyncio.create_task(self._hear(endpoint)) for endpoint in self.target.kv]
        timeout = max(LEAST_TIMEOUT, TIMEOUT_LOOKS * self._every)
        try:
            async with Http(self.target, self._settings, timeout, self._clock) as http:
                began = self._clock() - self._shift
                while True:
                    for task in self._beside(events):
                        if task.done() and not task.cancelled():
                            task.result()  # a fault of this program is not to be silent
                    self._work = 0.0
                    await self._rest(began, await self._look(http))
        finally:
            await ended(self._beside(events))

    async def _rest(self, began: float, least: float) -> None:
        """Until the next look is due, which may change meanwhile; `least` seconds from one to the next."""
        looked = self._clock()
        while True:
            pause = max(least, self._pace())
            due = began + (math.floor((looked - began) / pause) + 1) * pause
            left = max(looked + REST * self._work, due) - self._clock()
            await asyncio.sleep(min(left, SLICE))
            if left <= SLICE:
                return

    def _beside(self, events: list[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
        """What goes on between looks."""
        return events if self._asking is None else [*events, self._asking]

    def _pace(self) -> float:
        """Seconds between two looks, which are more where reading them takes its time; that is told."""
        pace = self._every * self._times()
        while pace < REST * self._work:
            pace *= 2
        if pace != self._paced:
            self._paced = pace
            self._tell_head()
        return pace

    async def _look(self, http: Http) -> float:
        """Ask once; gives the seconds from one look to the next."""
        found = self._found
        if found is None:
            outcome = await find(http)
            if isinstance(outcome, NotFound):
                self._work = outcome.work
                self._fail(outcome.time, outcome.phase, outcome.reason)
                return max(self._every, FOREIGN_SECONDS) if outcome.phase == "foreign" else self._every
            await self._take(http, outcome, outcome.answer)
            return self._every
        try:
            answer = await http.get(found.path)
        except NoAnswer as error:
            if isinstance(error, TooMuch):  # not to be read again and again
                self._found = None
            self._fail(http.now(), "failing", str(error))
            return self._every
        if answer.status == 200:
            began = time.thread_time()
            try:
                kind = kind_of(answer.text, found.kind)
            except ValueError as error:
                self._work = time.thread_time() - began
                self._fail(answer.time, "failing", f"its metrics cannot be read: {error}")
                return self._every
            if kind is not None:
                same = kind == found.kind and not self._failing
                await self._take(http, found if same else Found(kind, found.path, answer), answer)
                return self._every
            self._found = None
            self._fail(answer.time, "failing", f"its metrics have no names of {BY_KIND[found.kind].title} any more")
            return self._every
        refusal = refused(http, answer)
        if refusal is None:  # it is not there any more: another server may be
            self._found = None
            moved = f", to {line(answer.moved)}" if answer.moved else ""
            self._fail(answer.time, "failing", f"{found.path} answers HTTP {answer.status}{moved}")
        else:
            self._fail(refusal.time, refusal.phase, refusal.reason)
        return self._every

    async def _take(self, http: Http, found: Found, answer: Answer) -> None:
        """A page of metrics. One after a failure may be of a server that was started anew: perhaps another version."""
        if found is not self._found:
            another = self._found is None or self._found.kind != found.kind
            self._found, self._failing, self._slots = found, False, True
            if another:
                self._version = ""
                self._tell_head()
            if self._asking is not None:
                self._asking.cancel()
            self._asking = asyncio.create_task(self._ask_version(http, found.kind))
        began = time.thread_time()
        try:
            text = lines_known(answer.text)
        except ValueError as error:
            self._work = time.thread_time() - began
            self._fail(answer.time, "failing", f"its metrics cannot be read: {error}")
            return
        self._sink(Scrape(self._source, answer.time, answer.took, text))
        self._work = time.thread_time() - began
        if found.kind == "llama.cpp" and self._slots:
            await self._look_at_slots(http)

    async def _look_at_slots(self, http: Http) -> None:
        """A server that does not tell them says so, and is not asked again. What it told before is not of now then."""
        rows: tuple[Slot, ...] | None = None
        try:
            answer = await http.get("/slots")
            if answer.status == 200:
                rows = read_slots(answer.body)
            else:
                self._slots = answer.status in (429, 500, 502, 503, 504)
        except NoAnswer:
            pass
        except ValueError:
            self._slots = False
        if rows is not None or self._told_slots:
            self._sink(Slots(self._source, self._clock(), rows))
        self._told_slots = rows is not None

    async def _ask_version(self, http: Http, kind: str) -> None:
        version = await ask_version(http, kind)
        if version and version != self._version:
            self._version = version
            self._tell_head()

    async def _hear(self, endpoint: KvEndpoint) -> None:
        """A publisher's events, for as long as this runs."""
        from servers.kv_subscriber import Link, subscribe  # ZMQ takes its time to load

        away = asyncio.Event()  # set while there is no connection
        away.set()

        def told(link: Link) -> None:
            if link == "connected":
                away.clear()
                self._tell_link(endpoint, "live")
            elif not away.is_set():  # else it is told already, perhaps with its reason
                away.set()
                self._tell_link(endpoint, "connecting")

        self._tell_link(endpoint, "connecting")
        asking = asyncio.create_task(self._ask_why(endpoint, away))
        try:
            async with aclosing(subscribe(endpoint.events, endpoint.replay, told=told)) as messages:
                async for message in messages:
                    self._sink(KvMessage(self._source, self._clock(), endpoint.events, to_builtins(message)))
                    if self._beside_items is not None:
                        self._beside_items(endpoint.events, message)
        except ValueError as error:
            self._tell_link(endpoint, "failing", str(error))
        finally:
            await ended([asking])

    async def _ask_why(self, endpoint: KvEndpoint, away: asyncio.Event) -> None:
        """Why there is no connection, once in a while as long as there is none."""
        from servers.kv_reach import why_unheard

        said = ""
        while True:
            if not away.is_set():
                said = ""
            await away.wait()
            await asyncio.sleep(WHY_SECONDS if said else FIRST_WHY)
            reason = await why_unheard(endpoint.events) if away.is_set() else ""
            if away.is_set() and reason:
                said = reason
                self._tell_link(endpoint, "connecting", reason)

    def _tell_link(self, endpoint: KvEndpoint, phase: KvPhase, detail: str = "") -> None:
        self._sink(KvLink(self._source, self._clock(), endpoint.events, phase, detail))

    def _fail(self, at: float, phase: FailedPhase, reason: str) -> None:
        self._failing = True
        self._sink(Failed(self._source, at, phase, reason))

    def _tell_head(self) -> None:
        """Who this is, as far as it is known."""
        self._sink(
            SourceHead(
                self._source,
                self.target.name,
                self.target.url,
                self._found.kind if self._found is not None else "",
                self._version,
                time.time(),
                time=self._clock(),
                every=self._paced,
            )
        )
