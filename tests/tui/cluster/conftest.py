"""The app over a cluster that is heard of when a test says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.cluster.protocol import ClusterState, encode_cluster
from tests.tui.cluster.clusters import busy, early
from tui.cluster.attach import ClusterAttach
from tui.cluster.states import ClusterStates
from tui.engine_api import Refused
from tui.sources.targets import target

import msgspec  # isort: skip


class Told:
    """A cluster that takes changes, and notes them."""

    def __init__(self, states: ClusterStates) -> None:
        self.changes: list[dict[str, Any]] = []
        self.refusal = ""
        self._states = states

    async def change_cluster(self, changes: dict[str, Any]) -> Any:
        self.changes.append(changes)
        if self.refusal:
            raise Refused(self.refusal)
        assert self._states.state is not None
        return msgspec.structs.replace(self._states.state.control, **changes)

    async def close(self) -> None:
        pass


class Still(ClusterAttach):
    """It hears of its cluster what a test says, and asks none."""

    def begin(self, readonly: bool, tell: Any) -> None:
        super().begin(readonly, tell)
        assert self.feed is not None
        self.feed._enter("live")
        self.told = Told(self.feed.states)
        self.cluster.operator._cluster = self.told  # type: ignore[assignment]

    async def run(self) -> None:
        await asyncio.Event().wait()

    def hear(self, state: ClusterState) -> None:
        assert self.feed is not None
        self.feed.states.take(state, encode_cluster(state))


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def watching(showing):
    """The app after some states."""

    def show(size=(160, 48), look=None, states=(early, busy), **options):
        clock = Clock()
        attach = Still(target("http://127.0.0.1:8000"), clock=clock)

        async def ready():
            for state in states:
                attach.hear(state())

        return showing(attach, attach, clock, ready, size, look, **options)

    return show
