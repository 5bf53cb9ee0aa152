"""One pass over a trace's file: statistics of it, or of as much as was read when somebody stopped it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from loadgen.inspection.columns import batches
from loadgen.inspection.statistics import CONTEXTS, ENGINE_BLOCK_SIZE, Collector, Statistics
from loadgen.traces.formats import TraceFile


class Reading(msgspec.Struct, frozen=True):
    """How far a pass is, after `seconds` of it. Bytes are those of the file as it lies on the disk."""

    bytes_read: int
    size: int
    seconds: float
    requests: int


class Inspection(msgspec.Struct, frozen=True):
    """What is told of one file. `whole` is False when more sessions follow, which nobody waited for."""

    file: str
    format: str
    size: int  # bytes
    bytes_read: int
    whole: bool
    bad_lines: int  # that were skipped
    first_bad_lines: tuple[str, ...]
    left_out: dict[str, int]  # what no session could hold
    statistics: Statistics


def inspect_trace(
    trace: TraceFile,
    watch: Callable[[Reading], bool],
    *,
    sessions: int | None = None,
    engine_block_sizes: Sequence[int] = (ENGINE_BLOCK_SIZE,),
    contexts: Sequence[int] = CONTEXTS,
) -> Inspection:
    """Read the trace, or its first `sessions`. `watch` is told often how far it is, and says whether to go on.

    Raises `TraceError` for a line that is bad.
    """
    started = time.monotonic()
    collector = Collector(trace.header, engine_block_sizes, contexts)
    stream = trace.sessions()
    whole = True
    for batch in batches(islice(stream, sessions)):
        collector.take(batch)
        reading = Reading(trace.bytes_read, trace.size, time.monotonic() - started, collector.requests)
        if not watch(reading):
            whole = next(stream, None) is None
            break
    else:
        whole = sessions is None or next(stream, None) is None
    return Inspection(
        file=str(trace.path),
        format=trace.format,
        size=trace.size,
        bytes_read=trace.bytes_read,
        whole=whole,
        bad_lines=trace.bad.count,
        first_bad_lines=tuple(trace.bad.first),
        left_out=dict(trace.left_out),
        statistics=collector.statistics(),
    )
