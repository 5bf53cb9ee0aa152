"""A cluster, followed for as long as the program runs: by its stream of states, or asked again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tui import figures
from tui.cluster.client import Cluster, read_state
from tui.cluster.states import ClusterStates
from tui.engine_api import Down, Locked, Missing, NotAnEngine, Unreachable, Unreadable
from tui.feed import BACK_OFF, LOCKED_AGAIN, NEWS_SHOWN
from tui.together import ended
from tui.view import Link, Phase

POLL_SECONDS = 1.0  # between two looks at a cluster that has no stream
BYTES_PER_SECOND = 2 << 20  # of states that are read: where they are large, some are left out, never the newest


class ClusterFeed:
    """Its states are in `states`; `link` says how the connection stands. `clock` is this machine's, in seconds."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self.cluster = cluster
        self.states = ClusterStates()
        self._clock = clock
        self._phase: Phase = "connecting"
        self._detail = ""
        self.unreadable = False  # a cluster answers, and its states cannot be read
        self._since = clock()
        self._heard_at = clock()
        self._lost = False  # the connection was, since the last state
        self._news, self._news_until = "", 0.0
        self._streams = False  # every change is told
        self._waiting: bytes | None = None  # the newest that came and was not taken
        self._came = asyncio.Event()

    @property
    def link(self) -> Link:
        now = self._clock()
        return Link(self._phase, self._detail, now - self._since, news=self._news if now < self._news_until else "")

    @property
    def silent(self) -> float:
        """Seconds for which nothing has changed: while connected to a stream of all changes, since the last state."""
        return self._clock() - self._heard_at if self._phase == "live" and self._streams else 0.0

    async def run(self) -> None:
        """Follow it until cancelled."""
        tries = 0
        while True:
            before, pause = self.states.heard, 0.0
            try:
                await self._session()
            except Locked as error:
                self._enter("locked", str(error))
                pause = LOCKED_AGAIN
            except NotAnEngine as error:
                self._enter("foreign", str(error))
                self.unreadable = isinstance(error, Unreadable)
            except Down as error:
                self._enter("down" if self.states.heard else "connecting", str(error))
            except Unreachable as error:
                self._enter("reconnecting" if self.states.heard else "connecting", str(error))
            tries = 0 if self.states.heard > before else tries
            await asyncio.sleep(pause or BACK_OFF[min(tries, len(BACK_OFF) - 1)])
            tries += 1

    async def _session(self) -> None:
        """One connection."""
        try:
            await self._follow()
        except Missing:
            self._streams = False
            while True:
                self._take(await self.cluster.state())
                await asyncio.sleep(POLL_SECONDS)

    async def _follow(self) -> None:
        """Take the newest state of the stream, as often as their size allows. Raises as the stream does."""
        self._waiting = None
        reading = asyncio.create_task(self._read())
        try:
            while True:
                self._came.clear()
                if self._waiting is None:
                    news = asyncio.create_task(self._came.wait())
                    try:
                        await asyncio.wait((reading, news), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        news.cancel()
                data, self._waiting = self._waiting, None
                if data is None:
                    if reading.done():
                        reading.result()
                        return
                    continue
                self._take(data)
                await asyncio.sleep(len(data) / BYTES_PER_SECOND)
        finally:
            await ended([reading])

    async def _read(self) -> None:
        async for data in self.cluster.states():
            self._streams = True
            self._waiting = data
            self._came.set()

    def _take(self, data: bytes) -> None:
        """Raises NotAnEngine where it cannot be read."""
        state = read_state(data)
        news = ""
        if self._lost:
            news = f"the cluster answers again, after {figures.seconds(self._clock() - self._since)}"
            self._news, self._news_until = news, self._clock() + NEWS_SHOWN
        self._heard_at = self._clock()
        self._enter("live")
        self.states.take(state, data, news)

    def _enter(self, phase: Phase, detail: str = "") -> None:
        if phase == "live":
            if self._phase != "live":
                self._since = self._clock()
            self._lost = False
        elif not self._lost and self.states.heard:
            self._lost, self._since = True, self._clock()
        self._phase, self._detail, self.unreadable = phase, detail, False
