"""Ten real servers on loopback, of which half die and come back: what all do together is of those that tell now."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from tests.servers.pages import EngineFigures
from tests.servers.stand_in import StandIn
from tests.tui.sources.waiting import until
from tui.sources import fleet
from tui.sources.targets import HttpSettings, target
from tui.sources.view import FleetView
from tui.sources.watch import Watch


async def test_five_of_ten_die_and_come_back() -> None:
    servers = [StandIn("vllm", [EngineFigures(running=1 << at)]) for at in range(10)]
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
            server.engine.serve(10, generated=100)
        watch = Watch([target(server.url, f"s{at}") for at, server in enumerate(servers)], HttpSettings(), every=0.1)

        def totals() -> fleet.Totals:
            views = tuple(source.view() for source in watch.sources)
            return fleet.totals(fleet.rows(FleetView(views, views[0].now), 60.0))

        def running() -> float | None:
            return totals().gauge("running")

        watching = asyncio.create_task(watch.run())
        try:
            await until(lambda: running() == 1023)
            for server in servers[::2]:
                await server.stop()
            await until(lambda: running() == 0b1010101010)
            assert (len(totals().parts), totals().servers) == (5, 10)
            for at, server in enumerate(servers[::2]):
                server.restart()
                server.engine.running = 4**at
                await server.start()
            await until(lambda: running() == 1023)
            await until(
                lambda: all(len(source.view().restarts) == (at % 2 == 0) for at, source in enumerate(watch.sources))
            )
            assert totals().restarts == 5
            before = {source.name: source.items for source in watch.sources}
            await until(lambda: all(source.items > before[source.name] + 1 for source in watch.sources))
            # No counter that began anew is taken for growth, nor for less than nothing.
            assert totals().sum(lambda part: part.growth.get("generation_tokens")) == 0.0
            assert not watching.done()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
