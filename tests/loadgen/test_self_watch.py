"""loadgen notices when it is itself too slow."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import pytest

from loadgen.self_watch import SelfFigures, SelfWatch, summary


async def watched(block: float) -> SelfFigures:
    """Of a loop that something holds for so many seconds, five times."""
    watch = SelfWatch()
    task = asyncio.create_task(watch.run())
    for _ in range(5):
        await asyncio.sleep(0.001)
        time.sleep(block)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return watch.figures()


async def test_a_blocked_loop_is_noticed() -> None:
    figures = await watched(0.2)
    assert figures.bottleneck
    assert figures.max_lag_ms is not None
    assert figures.late_ms is not None
    assert figures.max_lag_ms >= figures.late_ms >= 100
    assert figures.ticks >= 1


async def test_sleep_is_no_cpu_time() -> None:
    figures = await watched(0.1)
    assert figures.wall_s >= 0.5
    assert figures.cpu_share < 0.5


def test_busy_time_is_cpu_time() -> None:
    watch = SelfWatch()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert watch.figures().cpu_s >= 0.05


def test_nothing_measured() -> None:
    figures = SelfWatch().figures()
    assert figures.p99_lag_ms is None
    assert figures.late_ms is None
    assert summary([])["client_is_bottleneck"] is False


def process(cpu: float, lag: float, ticks: int = 100) -> SelfFigures:
    return SelfFigures(wall_s=10.0, cpu_s=cpu, ticks=ticks, mean_lag_ms=lag / 2, p99_lag_ms=lag, max_lag_ms=2 * lag)


def test_processes_add_up_and_the_worst_one_counts() -> None:
    assert summary([process(2.0, 1.0, ticks=100), process(7.0, 4.0, ticks=300)]) == {
        "client_processes": 2,
        "client_cpu_s": 9.0,
        "client_cpu_share": 0.7,
        "client_mean_loop_lag_ms": (0.5 * 100 + 2.0 * 300) / 400,
        "client_p99_loop_lag_ms": 4.0,
        "client_max_loop_lag_ms": 8.0,
        "client_is_bottleneck": False,
    }


@pytest.mark.parametrize(("cpu", "lag"), [(8.1, 1.0), (1.0, 51.0)])
def test_one_slow_process_makes_the_client_the_bottleneck(cpu: float, lag: float) -> None:
    assert summary([process(1.0, 1.0), process(cpu, lag)])["client_is_bottleneck"] is True


def test_the_share_of_lately() -> None:
    before, after = SelfFigures(wall_s=10.0, cpu_s=1.0), SelfFigures(wall_s=12.0, cpu_s=2.8)
    assert after.cpu_share_since(before) == pytest.approx(0.9)
    assert after.cpu_share_since(after) == pytest.approx(2.8 / 12)


def test_figures_travel_between_processes() -> None:
    figures = process(1.0, 2.0)
    assert msgspec.json.decode(msgspec.json.encode(figures), type=SelfFigures) == figures
