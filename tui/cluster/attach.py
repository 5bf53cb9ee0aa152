"""A cluster that the screen is attached to, live or as a recording; any of its workers is opened by its own steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from tui.attached import Shown, Steps
from tui.cluster.client import HttpCluster
from tui.cluster.feed import ClusterFeed
from tui.cluster.player import ClusterPlayer
from tui.cluster.shown import LIVE, OfCluster
from tui.operator import Tell
from tui.session import Session
from tui.sources.clock import now
from tui.sources.targets import NO_SETTINGS, HttpSettings, Target
from tui.together import ended, together

CHECK_SECONDS = 0.2  # between two looks at a recording that is not what is shown
BACK = "the cluster"


class ClusterAttach:
    """Run it in a task, and close it in any case. `target` None: `player` has the states."""

    def __init__(
        self,
        target: Target | None,
        http: HttpSettings = NO_SETTINGS,
        clock: Callable[[], float] = now,
        player: ClusterPlayer | None = None,
        texts: bool = True,
    ) -> None:
        """`texts`: what requests and blocks of a worker say may be asked for."""
        if (target is None) == (player is None):
            raise ValueError("either a target or a player")
        self.target = target
        self.finished: list[str] = []
        self.report: list[str] = []
        self.error = ""
        self.feed: ClusterFeed | None = None
        self._http = http
        self._clock = clock
        self._player = player
        self._texts = texts
        self._readonly = False
        self._tell: Tell | None = None
        self._cluster: OfCluster | None = None
        self._steps: Steps | None = None  # of the worker that is shown alone
        self._following: asyncio.Task[None] | None = None

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock

    @property
    def cluster(self) -> OfCluster:
        assert self._cluster is not None, "begin comes first"
        return self._cluster

    @property
    def shown(self) -> Shown:
        return self._steps or self.cluster

    @property
    def back(self) -> str:
        return BACK if self._steps is not None else ""

    def begin(self, readonly: bool, tell: Tell) -> None:
        self._readonly, self._tell = readonly, tell
        if self._player is not None:
            states, words = self._player.states, self._player.path.name
            self._cluster = OfCluster(states, None, lambda: LIVE, readonly, tell, words, self._player)
            return
        assert self.target is not None
        cluster = HttpCluster(self.target.url, self._http, self.target.user)
        feed = self.feed = ClusterFeed(cluster, self._clock)
        self._cluster = OfCluster(
            feed.states,
            cluster,
            lambda: feed.link,
            readonly,
            tell,
            self.target.url,
            secrets=self._secrets(self.target),
            unchecked=self._http.unchecked((self.target.url,)),
            silent=lambda: feed.silent,
        )

    async def run(self) -> None:
        """Follow the cluster, or play it, until cancelled."""
        states = self._player or self.feed
        assert states is not None, "begin comes first"
        await together([asyncio.create_task(states.run()), asyncio.create_task(self._check())])

    async def open(self, server: str) -> None:
        """Show a worker alone, by its own stream of steps. A cluster's frozen picture is left."""
        assert self._tell is not None
        state = self.cluster.states.state
        worker = next((worker for worker in state.workers if worker.name == server), None) if state else None
        if self.target is None:
            self._tell("a recording of a cluster has no steps of its workers", True)
        elif worker is None:
            self._tell(f"there is no worker {server} now", True)
        else:
            await self.leave()
            url = self.target.url + worker.path
            session = Session(
                url, http=self._http, user=self.target.user, clock=self._clock, texts=self._texts,
                load_url=self.target.url,  # completions are asked of the whole cluster
            )  # fmt: skip
            self._steps = Steps(session, self._readonly, self._tell, server, self._recording)
            self._following = asyncio.create_task(session.run())

    async def leave(self) -> None:
        """Back to all of them."""
        steps, following = self._steps, self._following
        self._steps = self._following = None
        if steps is None:
            return
        steps.operator.ended = True
        steps.recorder.stop("the steps are left: ")
        self.finished += steps.recorder.finished
        if following is not None:
            await ended([following])
        await steps.session.close()
        if steps.session.replay is not None:
            self.report += steps.session.replay.report
            self.error = steps.session.replay.failure or self.error

    async def close(self) -> None:
        """Stop what was started, and let go of the cluster. What was recorded is in `finished`."""
        await self.leave()
        self.cluster.operator.ended = True
        self.cluster.recorder.stop()
        self.finished += self.cluster.recorder.finished
        if self._player is not None:
            await self._player.close()
        if self.feed is not None:
            await self.feed.cluster.close()

    async def _check(self) -> None:
        """What goes on while a worker is shown alone: the recording of the cluster, and the steps' own task."""
        while True:
            self.cluster.recorder.check()
            if self._following is not None and self._following.done():
                self._following.result()
            await asyncio.sleep(CHECK_SECONDS)

    def _recording(self) -> str:
        words = self.cluster.recorder.words
        return f"{BACK}: {words}" if words else ""

    def _secrets(self, target: Target) -> Iterator[str]:
        """What is left out of recordings: the values of headers, a key among them, and the user of the address."""
        for value in self._http.headers_for(target, ours=True).values():
            yield value
            yield value.rpartition(" ")[2]
        for part in target.user.split(":"):
            yield part
            yield unquote(part)
