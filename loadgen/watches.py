"""What looks at the server from beside the requests, over the same time: its step stream and its /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp

from loadgen.engine_figures import since
from loadgen.engine_watch import EngineError, EngineWatch, read_snapshot
from loadgen.server_metrics import ServerMetrics


@dataclass(slots=True)
class Watches:
    """Both, from `begin` to `finish`; None for what a server does not have."""

    engine: EngineWatch | None
    server: ServerMetrics | None

    @classmethod
    async def begin(cls, http: aiohttp.ClientSession, url: str) -> Watches:
        """Raises `EngineError` if it has a step stream that cannot be read."""
        first = await read_snapshot(http, url)
        server = await ServerMetrics.start(http, url)
        return cls(EngineWatch(http, url, first) if first is not None else None, server)

    async def finish(self, begin: float, notes: list[str]) -> dict[str, Any]:
        """The parts of a `RunEnd` that they tell. Requests began to be sent at `begin`, in seconds of the run.

        The engine's clock is another one: both are laid together at the first arrival.
        """
        engine: dict[str, Any] | None = None
        moments: tuple[tuple[float, int, int, int], ...] = ()
        if self.engine is not None:
            try:
                engine = await self.engine.finish()
                told = since(self.engine.ledger.moments, self.engine.ledger.began)
                moments = tuple((begin + m.time, m.held, m.internal, m.saved_blocks) for m in told)
            except EngineError as error:
                notes.append(f"No engine figures: {error}")
            else:
                if lost := engine["records_lost"]:
                    notes.append(f"{lost} step records were lost: means and peaks of the engine lack them.")
        server = None if self.server is None else await self.server.finish()
        if self.engine is None and server is None:
            notes.append("The server has neither /engine/snapshot nor /metrics: there are no figures of its own.")
        return {"engine": engine, "moments": moments, "server": server}

    async def close(self) -> None:
        """Stop looking."""
        if self.engine is not None:
            await self.engine.close()
        if self.server is not None:
            await self.server.close()
