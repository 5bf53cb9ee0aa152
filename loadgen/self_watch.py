"""Whether loadgen itself was the bottleneck: its CPU time and how late its event loop ran."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

TICK = 0.05  # seconds
CPU_SHARE_LIMIT = 0.8  # of one core
LAG_LIMIT_MS = 50.0  # at the 99th percentile


@dataclass(slots=True)
class SelfWatch:
    """Measures from its start to `figures`."""

    _wall: float = field(default_factory=time.monotonic)
    _cpu: float = field(default_factory=time.process_time)
    _lags: list[float] = field(default_factory=list)

    async def run(self) -> None:
        """Sleep in ticks and note how late each wake-up is, until cancelled."""
        while True:
            due = time.monotonic() + TICK
            await asyncio.sleep(TICK)
            self._lags.append(max(0.0, time.monotonic() - due) * 1000)

    def figures(self) -> dict[str, float | bool | None]:
        """CPU seconds, their share of one core, loop lag in milliseconds, and the verdict."""
        wall = time.monotonic() - self._wall
        cpu = time.process_time() - self._cpu
        lags = sorted(self._lags)
        p99 = lags[int(0.99 * (len(lags) - 1))] if lags else None
        share = cpu / wall if wall > 0 else 0.0
        return {
            "client_cpu_s": cpu,
            "client_cpu_share": share,
            "client_mean_loop_lag_ms": sum(lags) / len(lags) if lags else None,
            "client_p99_loop_lag_ms": p99,
            "client_max_loop_lag_ms": lags[-1] if lags else None,
            "client_is_bottleneck": share > CPU_SHARE_LIMIT or (p99 is not None and p99 > LAG_LIMIT_MS),
        }
