"""Predictions of several engines as text for people: one in full, many as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.cluster.protocol import ClusterControl
from engine.simulator.prediction import PoolsPrediction
from engine.simulator.report import lines, rate, seconds, table

HEADER = (
    "engines",
    "requests/s",
    "tokens/s",
    "TTFT p50",
    "p90",
    "p99",
    "ITL p50",
    "p99",
    "hits",
    "busy",
    "goodput/s",
    "good",
)


def name(control: ClusterControl) -> str:
    """Such as 2P3D, or 4 replicas."""
    pools = f"{control.prefill}P{control.decode}D" if control.prefill or control.decode else ""
    replicas = f"{control.replicas} replica{'s' * (control.replicas != 1)}" if control.replicas else ""
    colocated = "" if control.separate or not pools else ", colocated"
    return " and ".join(filter(None, (pools, replicas))) + colocated


def pools_report(prediction: PoolsPrediction) -> str:
    """A line for each figure."""
    return table((*lines(prediction), *_pool_lines(prediction)))


def _pool_lines(prediction: PoolsPrediction) -> Iterator[tuple[str, str]]:
    pools, transfers, router = prediction.pools, prediction.transfers, prediction.router
    yield "engines", f"{name(pools.control)}, routing {pools.control.routing}; the figures above are of all together"
    for role, use in prediction.roles.items():
        yield (
            role,
            f"{use.engines:,} busy {_percent(use.busy_share)} of the time (one {_percent(use.most_busy_share)}), "
            f"{use.steps:,} steps, {use.computed_tokens:,} tokens computed",
        )
    if pools.control.prefill:
        yield (
            "handed over",
            f"{router.handed_over:,} requests, {router.local:,} prefilled where they decode; {transfers.nbytes:,} "
            f"bytes moved; {transfers.failed:,} computed again, {transfers.expired:,} leases expired",
        )
        yield "offer to blocks", seconds(transfers.waited)
        yield "blocks to filled", seconds(transfers.moved)
    yield (
        "router",
        f"{router.decisions:,} decisions, {router.by_prefix:,} by prefix, {router.bounded:,} not for load; "
        f"{router.indexed_blocks:,} blocks known",
    )
    if (good := prediction.goodput) is not None:
        yield "goodput", f"{rate(good.requests_per_second)} requests/s, {_percent(good.share)} of those served"


def sweep_report(predictions: Sequence[PoolsPrediction]) -> str:
    """A row for each, in seconds."""
    rows = [HEADER, *map(_row, predictions)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    told = [
        "  ".join(cell.ljust(width) if not place else cell.rjust(width) for place, (cell, width) in enumerate(cells))
        for cells in (zip(row, widths, strict=True) for row in rows)
    ]
    if predictions and not predictions[-1].simulation.complete:
        told.append("interrupted: the last row is of what was served until then")
    return "\n".join(told)


def _row(prediction: PoolsPrediction) -> tuple[str, ...]:
    queue, throughput, good = prediction.queue, prediction.throughput, prediction.goodput
    first, gap = queue.time_to_first_token, queue.inter_token
    busy = [f"{role[0].upper()} {_percent(use.busy_share)}" for role, use in prediction.roles.items()]
    return (
        name(prediction.pools.control),
        rate(throughput.requests_per_second),
        rate(throughput.output_tokens_per_second),
        *(_short(value) for value in (first.p50, first.p90, first.p99, gap.p50, gap.p99)),
        _percent(prediction.hits.token_rate),
        " ".join(busy),
        "-" if good is None else rate(good.requests_per_second),
        "-" if good is None else _percent(good.share),
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
