"""loadgen notices when it is itself too slow."""

from __future__ import annotations

import asyncio
import time

from loadgen.self_watch import SelfWatch


async def test_a_blocked_loop_is_noticed() -> None:
    watch = SelfWatch()
    task = asyncio.create_task(watch.run())
    for _ in range(5):
        await asyncio.sleep(0.001)
        time.sleep(0.2)
    task.cancel()
    figures = watch.figures()
    assert figures["client_is_bottleneck"] is True
    assert (figures["client_max_loop_lag_ms"] or 0) >= 100


def test_nothing_measured() -> None:
    figures = SelfWatch().figures()
    assert figures["client_p99_loop_lag_ms"] is None
