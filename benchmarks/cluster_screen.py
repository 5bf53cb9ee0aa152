"""`python -m benchmarks.cluster_screen`: what a cluster's state costs the screen: bytes, and milliseconds to read, keep
and draw it.

States are made here, of workers that all serve; each is told a moment after the one before, with counters moved on.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.compare import tell_if_busy, written_json
from benchmarks.report import machine
from benchmarks.terminal import COLUMNS, LINES
from engine.cli import between
from engine.cluster.protocol import (
    ClusterControl,
    ClusterState,
    Interference,
    RouterState,
    StepTimes,
    TransferTotals,
    WorkerState,
    decode_cluster,
    encode_cluster,
)
from engine.protocol import EngineInfo
from tui import scene
from tui.cluster.states import ClusterStates
from tui.focus import ClusterFocus, Focus
from tui.look import Look
from tui.view import Frame, Link, Status

TIMES = Interference(StepTimes(120_000, 960.0, 0.008, 0.0121, 0.0174), StepTimes(3_400, 61.2, 0.018, 0.041, 0.066))
MOVED = TransferTotals(18_211, 244_310, 2_001_387_520, 41.7)
REPEATS = 30
BY_NAME = Focus(panel="workers")
BY_LOAD = BY_NAME.but(cluster=ClusterFocus(sort="load", descending=True))


@dataclass(frozen=True, slots=True)
class Found:
    """Of one size of cluster: medians in milliseconds. `resident_bytes`: of the whole program, at most."""

    workers: int
    bytes: int
    decode_ms: float
    keep_ms: float
    draw_ms: float
    sorted_ms: float
    resident_bytes: int


def state_of(workers: int, number: int) -> ClusterState:
    """A third of the workers prefill, the others decode."""
    third = workers // 3
    control = ClusterControl(prefill=third, decode=workers - third)
    found = tuple(
        _worker("prefill" if at < third else "decode", at if at < third else at - third, number)
        for at in range(workers)
    )
    return ClusterState(number, 1e9 + number * 0.1, control, found, (), (), RouterState(decisions=number * workers))


def _worker(role: str, at: int, number: int) -> WorkerState:
    name = f"{role}-{at}"
    engine = EngineInfo(
        model="smollm2-135m", dtype="bfloat16", device="cpu", block_size=16, num_blocks=1_456,
        kv_bytes_per_token=23_040, max_model_len=4_096, version="0.1.0", started=1.0 + at, started_unix=1e9 + at,
    )  # fmt: skip
    return WorkerState(
        name=name, role=role, phase="ready", path=f"/workers/{name}", node=f"node-{at % 50}", engine=engine,  # type: ignore[arg-type]
        seq=number * 7 + at, running=at % 48, waiting=at % 5, sending=at % 3, held_blocks=900 + at % 400,
        cached_blocks=at % 150, prefill_tokens=number * 310, decode_tokens=number * 47, looked_up_tokens=number * 300,
        found_tokens=number * 120, load=float(at * 13 % 4_000), routed=number + at, colocated=TIMES, separated=TIMES,
        sent=MOVED, received=MOVED,
    )  # fmt: skip


def measure(workers: int) -> Found:
    heard, size = ClusterStates(), 0
    decode: list[float] = []
    keep: list[float] = []
    draw: list[float] = []
    ordered: list[float] = []
    for number in range(REPEATS):
        data = encode_cluster(state_of(workers, number))
        size = len(data)
        decode.append(_milliseconds(partial(decode_cluster, data)))
        keep.append(_milliseconds(partial(heard.take, decode_cluster(data), data)))
        draw.append(_milliseconds(lambda: _draw(heard, BY_NAME)))
        ordered.append(_milliseconds(lambda: _draw(heard, BY_LOAD)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    median = statistics.median
    return Found(workers, size, median(decode), median(keep), median(draw), median(ordered), peak)


def _draw(heard: ClusterStates, focus: Focus) -> None:
    frame = Frame(Status(Link("live"), "http://host:8000"), None, focus, cluster=heard.newest(), of_cluster=True)
    scene.draw(frame, COLUMNS, LINES, Look())


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e3


def table(measured: Sequence[Found]) -> Table:
    whole = Table(title=f"a cluster's state, drawn in {COLUMNS}×{LINES}, ms of processor time", title_justify="left")
    for heading in ("workers", "bytes", "read", "keep", "draw", "draw by load", "peak memory"):
        whole.add_column(heading, no_wrap=True, justify="right")
    for one in measured:
        whole.add_row(
            f"{one.workers:,}",
            f"{one.bytes:,}",
            *(f"{value:.2f}" for value in (one.decode_ms, one.keep_ms, one.draw_ms, one.sorted_ms)),
            f"{one.resident_bytes / 2**20:,.0f} MiB",
        )
    return whole


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.cluster_screen", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=between(1, 2048), action="append", metavar="N", help="default: 10, 100, 1000")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    errors = Console(stderr=True)
    tell_if_busy(errors)
    measured = [measure(workers) for workers in arguments.workers or (10, 100, 1000)]
    Console(width=None if sys.stdout.isatty() else 120).print(table(measured))
    if arguments.json is not None:
        facts = {"machine": machine(), "measured": [asdict(one) for one in measured]}
        return written_json(arguments.json, facts, errors, "benchmarks.cluster_screen")
    return 0


if __name__ == "__main__":
    sys.exit(main())
