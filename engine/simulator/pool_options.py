"""The options of `paged-engine simulate` for several engines, and the clusters that they ask for."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from engine.cli import Adder, between, number
from engine.cluster.options import add_cluster, chosen_cluster
from engine.cluster.protocol import MOST_WORKERS, ClusterControl

if TYPE_CHECKING:
    from engine.simulator.slo import Slo

COLOCATED = "colocated"
# What shared memory gave for scattered blocks beside eight busy programs; a quieter machine gave 12.2e9
# (benchmarks/results/2026-11-30-hand-over.md).
LINK = 7.5e9
LINK_LATENCY = 0.002
_RATIO = re.compile(r"(\d{1,4}):(\d{1,4})")
_BANDWIDTH = number(1, 1e18, "bytes a second")


def add_pools(add: Adder) -> None:
    add_cluster(add)
    add(
        "--link",
        type=_BANDWIDTH,
        default=LINK,
        metavar="BYTES_PER_S",
        help="of each engine, in and out, which its transfers share (default: %(default)g)",
    )
    add(
        "--link-latency",
        type=number(0, 3600, "a number of seconds"),
        default=LINK_LATENCY,
        metavar="S",
        help="before a transfer begins (default: %(default)g)",
    )
    add(
        "--slo",
        type=_slo,
        metavar="LIMITS",
        help="such as ttft=500ms,itl=50ms: tell how many requests keep to them, each gap between tokens too; "
        "ttft and e2e count from when a request was due (loadgen's ttft_scheduled and e2el_scheduled)",
    )
    add(
        "--ratios",
        type=_ratios,
        metavar="P:D,...",
        help="try several splits, such as colocated,1:1,3:1: so many prefill and decode engines, of --workers if given",
    )
    add("--workers", type=_workers, metavar="N,...", help="try several numbers of engines, such as 1,2,5,10")
    add(
        "--load-per-worker",
        action="store_true",
        help="requests and arrivals (not think times) are for each engine: more engines, more people",
    )


def chosen_clusters(arguments: argparse.Namespace) -> tuple[ClusterControl, ...]:
    """None at all: one engine alone is asked for. Raises ArgumentTypeError."""
    stated = chosen_cluster(arguments)
    ratios, counts = arguments.ratios, arguments.workers
    if ratios is None and counts is None:
        if stated is None and (arguments.slo is not None or arguments.load_per_worker):
            stated = ClusterControl(replicas=1)
        return () if stated is None else (stated,)
    if stated is not None:
        raise argparse.ArgumentTypeError("--ratios, --workers: go without --prefill, --decode and --replicas")
    base = ClusterControl(routing=arguments.routing, local_prefill=arguments.local_prefill)
    found = [
        control
        for count in counts or (None,)
        for ratio in ratios or ((0, 1),)
        if (control := _split(base, ratio, count)) is not None
    ]
    if not found:
        raise argparse.ArgumentTypeError("--workers: two at least can be a prefill and a decode engine")
    return tuple(dict.fromkeys(found))  # several ratios may be the same few engines


def _split(base: ClusterControl, ratio: tuple[int, int], count: int | None) -> ClusterControl | None:
    """None where there are too few for both."""
    from msgspec.structs import replace

    prefill, decode = ratio
    if not prefill:
        if count is None:
            raise argparse.ArgumentTypeError(f"--ratios: {COLOCATED} needs --workers to say how many")
        return replace(base, replicas=count)
    if count is None:
        return replace(base, prefill=prefill, decode=decode)
    if count < 2:
        return None
    share = min(count - 1, max(1, round(count * prefill / (prefill + decode))))
    return replace(base, prefill=share, decode=count - share)


def _ratios(text: str) -> tuple[tuple[int, int], ...]:
    """(0, 1): colocated. Raises ArgumentTypeError."""
    found: list[tuple[int, int]] = []
    for part in map(str.strip, text.split(",")):
        match = _RATIO.fullmatch(part)
        pair = (0, 1) if part == COLOCATED else (int(match[1]), int(match[2])) if match else (0, 0)
        if part != COLOCATED and not all(1 <= side <= MOST_WORKERS for side in pair):
            raise argparse.ArgumentTypeError(
                f"must be {COLOCATED} or ratios from 1:1 to {MOST_WORKERS}:{MOST_WORKERS}, with commas, got {text!r}"
            )
        found.append(pair)
    return tuple(found)


def _workers(text: str) -> tuple[int, ...]:
    """Raises ArgumentTypeError."""
    return tuple(between(1, MOST_WORKERS)(part.strip()) for part in text.split(","))


def _slo(text: str) -> Slo:
    """Raises ArgumentTypeError."""
    from engine.simulator.slo import parse_slo

    try:
        return parse_slo(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
