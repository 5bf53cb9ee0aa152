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
    async def begin(cls, http: aiohttp.ClientSession, engine_http: aiohttp.ClientSession | None, url: str) -> Watches:
        """`engine_http` is for the engine's own routes; None: they are not to be asked.

        Raises `EngineError` if it has a step stream that cannot be read.
        """
        first = None if engine_http is None else await read_snapshot(engine_http, url)
        server = await ServerMetrics.start(http, url)
        watch = None if first is None or engine_http is None else EngineWatch(engine_http, url, first)
        return cls(watch, server)

    async def finish(self, begin: float, notes: list[str]) -> dict[str, Any]:
        """The parts of a `RunEnd` that they tell. Requests began to be sent at `begin`, in seconds of the run.

        The engine's clock is another one: both are laid together at the first arrival.
        """
        engine: dict[str, Any] | None = None
        moments: tuple[tuple[float, int, int, int], ...] = ()
        if self.engine is not None:
            try:
                engine = await self.engine.finish()
                if (began := self.engine.began) is not None:
                    told = since(self.engine.ledger.moments, began)
                    moments = tuple((begin + m.time, m.held, m.internal, m.saved_blocks) for m in told)
            except EngineError as error:
                notes.append(f"No engine figures: {error}")
            else:
                if restarts := engine.get("restarts"):
                    often = "once" if restarts == 1 else f"{restarts} times"
                    notes.append(
                        f"The engine was started again {often} during the run. Its figures are of each of its lives by "
                        "itself, up to the last record that came; what was in flight at a death is in none."
                    )
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
