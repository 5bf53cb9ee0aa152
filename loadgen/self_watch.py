"""Whether loadgen itself was the bottleneck: the CPU time of its processes and how late their event loops ran."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from loadgen.metrics.histogram import Histogram

TICK = 0.05  # seconds
LATELY = 1.0  # seconds
CPU_SHARE_LIMIT = 0.8  # of one core, which is all that a process with one event loop can use
LAG_LIMIT_MS = 50.0  # at the 99th percentile


class SelfFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one client process needed so far. Its lags are how late its event loop woke, in milliseconds."""

    wall_s: float
    cpu_s: float
    ticks: int = 0
    mean_lag_ms: float | None = None
    p99_lag_ms: float | None = None
    max_lag_ms: float | None = None
    late_ms: float | None = None  # the largest lag of the last second

    @property
    def cpu_share(self) -> float:
        """Of one core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0

    def cpu_share_since(self, before: SelfFigures) -> float:
        """Of one core, between an earlier moment and this one; the whole if there is nothing between them."""
        wall = self.wall_s - before.wall_s
        return (self.cpu_s - before.cpu_s) / wall if wall > 0 else self.cpu_share

    @property
    def bottleneck(self) -> bool:
        """Whether it was too slow to measure by: it had no CPU left, or woke too late."""
        return self.cpu_share > CPU_SHARE_LIMIT or (self.p99_lag_ms is not None and self.p99_lag_ms > LAG_LIMIT_MS)


class SelfWatch:
    """Measures this process from its making on."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._cpu = time.process_time()
        self._lags = Histogram()
        self._lately = deque[float](maxlen=round(LATELY / TICK))

    async def run(self) -> None:
        """Sleep in ticks and note how late each wake-up is, until cancelled."""
        while True:
            due = time.monotonic() + TICK
            await asyncio.sleep(TICK)
            lag = round(max(0.0, time.monotonic() - due) * 1000, 2)  # few values: percentiles are asked for often
            self._lags.add(lag)
            self._lately.append(lag)

    def figures(self) -> SelfFigures:
        """What was measured up to now."""
        return SelfFigures(
            wall_s=time.monotonic() - self._wall,
            cpu_s=time.process_time() - self._cpu,
            ticks=self._lags.count,
            mean_lag_ms=self._lags.mean,
            p99_lag_ms=self._lags.percentile(99),
            max_lag_ms=self._lags.maximum,
            late_ms=max(self._lately, default=None),
        )


def summary(processes: Sequence[SelfFigures]) -> dict[str, float | bool | None]:
    """The client's figures of a report. CPU seconds add up; shares and lags are those of the worst process.

    The client is the bottleneck as soon as one of its processes is.
    """

    def worst(values: Sequence[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    ticks = sum(process.ticks for process in processes)
    lag = sum((process.mean_lag_ms or 0.0) * process.ticks for process in processes)
    return {
        "client_processes": len(processes),
        "client_cpu_s": sum(process.cpu_s for process in processes),
        "client_cpu_share": max((process.cpu_share for process in processes), default=0.0),
        "client_mean_loop_lag_ms": lag / ticks if ticks else None,
        "client_p99_loop_lag_ms": worst([process.p99_lag_ms for process in processes]),
        "client_max_loop_lag_ms": worst([process.max_lag_ms for process in processes]),
        "client_is_bottleneck": any(process.bottleneck for process in processes),
    }
