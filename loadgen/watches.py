"""What looks at the server from beside the requests, over the same time: its step streams and its /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp

from loadgen.cluster_calls import read_cluster
from loadgen.cluster_watch import ClusterWatch
from loadgen.engine_figures import since
from loadgen.engine_watch import EngineError, EngineWatch, read_snapshot
from loadgen.server_metrics import TIMEOUT, NoMetrics, ServerMetrics


@dataclass(slots=True)
class Watches:
    """Both, from `begin` to `finish`; None for what a server does not have."""

    engine: EngineWatch | ClusterWatch | None
    server: ServerMetrics | None
    no_metrics: str = ""  # why there are none

    @classmethod
    async def begin(
        cls, http: aiohttp.ClientSession, engine_http: aiohttp.ClientSession | None, url: str, metrics: str | None
    ) -> Watches:
        """`engine_http` is for the engine's own routes; None: they are not to be asked. `metrics`: where these are.

        Raises `EngineError` if it has a step stream that cannot be read.
        """
        watch = None if engine_http is None else await _watched(engine_http, url)
        server, why = None, ""
        try:
            server = await ServerMetrics.start(http, metrics or url)
        except NoMetrics as error:
            why = str(error)
        return cls(watch, server, why)

    async def finish(self, begin: float, notes: list[str]) -> dict[str, Any]:
        """The parts of a `RunEnd` that they tell. Requests began to be sent at `begin`, in seconds of the run.

        The engine's clock is another one: both are laid together at the first arrival.
        """
        engine: dict[str, Any] | None = None
        moments: tuple[tuple[float, int, int, int], ...] = ()
        if self.engine is not None:
            try:
                engine = await self.engine.finish()
                if isinstance(self.engine, EngineWatch) and (began := self.engine.began) is not None:
                    told = since(self.engine.ledger.moments, began)
                    moments = tuple((begin + m.time, m.held, m.internal, m.saved_blocks) for m in told)
            except EngineError as error:
                notes.append(f"No engine figures: {error}")
            else:
                notes += _of_engine(engine)
        server = None if self.server is None else await self.server.finish()
        if server is None and self.engine is None:
            notes.append(f"The server tells no figures of its own: no /engine/snapshot, and {self.no_metrics}.")
        elif server is None:
            notes.append(f"No figures from the server's metrics: {self.no_metrics}.")
        else:
            notes += _of_metrics(server)
        return {"engine": engine, "moments": moments, "server": server}

    async def close(self) -> None:
        """Stop looking."""
        if self.engine is not None:
            await self.engine.close()
        if self.server is not None:
            await self.server.close()


async def _watched(http: aiohttp.ClientSession, url: str) -> EngineWatch | ClusterWatch | None:
    """Raises `EngineError`."""
    if (first := await read_snapshot(http, url)) is not None:
        return EngineWatch(http, url, first)
    cluster = await read_cluster(http, url)
    return None if cluster is None else await ClusterWatch.begin(http, url, cluster)


def _of_engine(engine: dict[str, Any]) -> list[str]:
    """What a reader must know of an engine's figures, or of a cluster's."""
    told = []
    if restarts := engine.get("restarts"):
        told.append(
            f"The engine was started again {_often(restarts)} during the run. Its figures are of each of its lives by "
            "itself, up to the last record that came; what was in flight at a death is in none."
        )
    cluster = engine.get("cluster", {})
    for name, worker in cluster.get("workers", {}).items():
        if worker["restarts"]:
            told.append(
                f"{name} was started again {_often(worker['restarts'])} during the run; what it did in a step that "
                "nobody was told of before it died is in no figure."
            )
        if worker["phase"] != "ready":
            why = f" ({worker['reason']})" if worker["reason"] else ""
            told.append(f"At the end {name} was {worker['phase']}{why}.")
        if not worker["streamed"]:
            told.append(f"{name}: its step stream was not read; its figures are the totals that the cluster tells.")
    if cluster and cluster["before"] != cluster["control"]:
        changed = {
            name: f"{cluster['before'][name]} to {value}"
            for name, value in cluster["control"].items()
            if cluster["before"][name] != value
        }
        told.append(f"The cluster was changed during the run: {', '.join(f'{n} {v}' for n, v in changed.items())}.")
    if again := engine.get("continued_requests"):
        told.append(
            f"{again:,} requests went on in another engine. The server's metrics count them, their prompts and "
            "lookups in both; where client and server are laid beside each other they count once."
        )
    if lost := engine["records_lost"]:
        told.append(f"{lost} step records were lost: means and peaks of the engine lack them.")
    return told


def _often(times: int) -> str:
    return "once" if times == 1 else f"{times} times"


def _of_metrics(server: dict[str, Any]) -> list[str]:
    """What a reader must know of how the metrics were looked at."""
    told, where = [], server["where"]
    if failed := server["failed_looks"]:
        looks = "1 look" if failed == 1 else f"{failed:,} looks"
        told.append(f"{looks} at {where} failed, the last one because it {server['why_failed']}.")
    if server["slowest_look_s"] > TIMEOUT / 5:
        told.append(f"{where} is slow: a look took up to {server['slowest_look_s']:.1f} s. No request waited for it.")
    if why := server["lost"]:
        told.append(f"What the server counted is not known: at the end {where} {why}.")
    if server["restarts"]:
        when = ", ".join(f"{second:,.1f} s" for second in server["restarts"])
        told.append(
            f"The server's counters began anew, seen at {when}: it was restarted, and what it counted is not known."
        )
    return told
