"""One server that may be an engine or the front of a cluster, and may become the other: what answers is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tui.attached import Attached, Shown, Steps
from tui.operator import Tell
from tui.together import ended

if TYPE_CHECKING:  # what an engine alone does not need takes its time to load
    from tui.cluster.attach import ClusterAttach

LOOK_SECONDS = 0.05  # between two looks at what answers


class Either:
    """An engine at first. Run it in a task, and close it in any case."""

    def __init__(self, engine: Callable[[], Attached], cluster: Callable[[], ClusterAttach]) -> None:
        self._make_engine, self._make_cluster = engine, cluster
        self._now: Attached = engine()
        self._cluster: ClusterAttach | None = None  # the same, where it is one
        self._began: tuple[bool, Tell] | None = None
        self._finished: list[str] = []  # of what was shown before
        self._report: list[str] = []
        self._error = ""

    @property
    def now(self) -> Attached:
        """What answers, as far as it is known."""
        return self._now

    @property
    def clock(self) -> Callable[[], float]:
        return self._now.clock

    @property
    def shown(self) -> Shown:
        return self._now.shown

    @property
    def back(self) -> str:
        return self._now.back

    @property
    def finished(self) -> list[str]:
        return [*self._finished, *self._now.finished]

    @property
    def report(self) -> list[str]:
        return [*self._report, *self._now.report]

    @property
    def error(self) -> str:
        return self._now.error or self._error

    def begin(self, readonly: bool, tell: Tell) -> None:
        self._began = readonly, tell
        self._now.begin(readonly, tell)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            running = asyncio.create_task(self._now.run())
            try:
                while not self._is_other():
                    await asyncio.wait({running}, timeout=LOOK_SECONDS)
                    if running.done():
                        running.result()
                        return
            finally:
                await ended([running])
            await self._change()

    async def open(self, server: str) -> None:
        await self._now.open(server)

    async def leave(self) -> None:
        await self._now.leave()

    async def close(self) -> None:
        await self._now.close()

    def _is_other(self) -> bool:
        """Whether what answers says that it is not what is shown."""
        if self._cluster is not None:
            feed, recording = self._cluster.feed, self._cluster.cluster.recorder.running
            return feed is not None and feed.link.phase == "foreign" and not feed.unreadable and not recording
        shown = self._now.shown
        return isinstance(shown, Steps) and shown.session.link.phase == "cluster"

    async def _change(self) -> None:
        before, was_cluster = self._now, self._cluster is not None
        self._cluster = None if was_cluster else self._make_cluster()
        after: Attached = self._cluster or self._make_engine()
        assert self._began is not None, "begin comes first"
        after.begin(*self._began)
        self._now = after
        await before.close()
        self._finished += before.finished
        self._report += before.report
        self._error = before.error or self._error
        if was_cluster:
            self._began[1]("an engine answers there now, and no cluster", True)
