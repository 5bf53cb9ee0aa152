"""Fleets whose figures are known by hand: real pages of each kind of server, heard at set moments. No network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from servers.reading import lines_known
from tests.servers.pages import EngineFigures, Kind, page
from tui.sources.attach import Attach
from tui.sources.items import Failed, Scrape, SourceHead
from tui.sources.source import Source
from tui.sources.targets import target
from tui.sources.view import FleetView

BEGIN = 1_000.0  # of the watcher's clock
SECONDS = 30  # between the two looks that figures are of


class Clock:
    def __init__(self) -> None:
        self.time = BEGIN

    def __call__(self) -> float:
        return self.time


def hear(source: Source, kind: Kind, engine: EngineFigures, time: float, edit: Callable[[str], str] = str) -> None:
    """A look at a server of one engine."""
    source.take(Scrape(source.number, time, 0.01, lines_known(edit(page(kind, [engine])))))


def named(source: Source, kind: str, version: str = "1.2.3") -> None:
    source.take(SourceHead(source.number, source.name, "", kind, version, time=BEGIN, every=1.0))


class Still(Attach):
    """It hears of its servers what a test says, and asks none."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    def _start_watch(self) -> None:
        pass

    @property
    def sources(self) -> tuple[Source, ...]:
        assert self._servers is not None
        return self._servers.sources


NAMES = ("alpha", "beta", "gamma", "delta", "a-server-with-a-very-long-name-in-the-end-9")


def still(clock: Clock, names: tuple[str, ...] = NAMES) -> Still:
    return Still([target(f"http://127.0.0.1:{8001 + at}", name) for at, name in enumerate(names)], clock=clock)


def fill(sources: tuple[Source, ...], clock: Clock) -> None:
    """alpha and beta are busy, gamma has no KV memory to tell of, delta died ten seconds ago, the last one says
    nothing that is known."""
    alpha = EngineFigures(model="org/model-7b", running=6, waiting=2, kv_usage=0.5, kv_blocks=1000)
    beta = EngineFigures(model="org/model-7b", running=3, waiting=0, kv_usage=0.9, kv_blocks=3000)
    gamma = EngineFigures(running=1, waiting=4)
    delta = EngineFigures(model="other/model-70b", running=50, waiting=50, kv_usage=0.99, kv_blocks=500)
    kinds: tuple[Kind, ...] = ("vllm", "sglang", "tgi", "vllm")
    engines = (alpha, beta, gamma, delta)
    for source, kind, engine in zip(sources, kinds, engines, strict=False):
        named(source, kind)
        hear(source, kind, engine, BEGIN)
    alpha.serve(60, prompt=100, generated=20, cached=80, ttft=0.04, itl=0.009)
    alpha.preemptions += 3
    beta.serve(30, prompt=400, generated=40, cached=100, ttft=0.3, itl=0.04)
    gamma.serve(15, prompt=10, generated=10)
    delta.serve(90, prompt=1000, generated=100, ttft=4.0)
    clock.time = BEGIN + SECONDS
    for source, kind, engine in zip(sources, kinds, engines, strict=False):
        hear(source, kind, engine, clock.time - (10 if engine is delta else 0))
    sources[3].take(Failed(3, clock.time, "failing", "nothing answers there"))
    sources[4].take(Failed(4, clock.time, "foreign", "no server that is known here: /metrics answers HTTP 404"))


def fleet(clock: Clock | None = None) -> FleetView:
    clock = clock or Clock()
    sources = tuple(Source(name, f"http://127.0.0.1:{8001 + at}", clock, at) for at, name in enumerate(NAMES))
    fill(sources, clock)
    return FleetView(tuple(source.view() for source in sources), clock.time)
