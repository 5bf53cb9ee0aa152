"""The latencies of one request, and their distributions over many.

TTFT is the first chunk that carries content - sent; E2E the last one - sent; TPOT (E2E - TTFT) / (output tokens - 1),
undefined for one token; ITL the gaps between such chunks, pooled over the completed requests. The same from `scheduled`
hides no queueing. A request that failed counts as infinitely slow in TTFT and E2E: their percentiles that fall among
the failures are None, never a finite number.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from loadgen.metrics.histogram import Histogram
from loadgen.outcome import Outcome, RequestRecord

METRICS = ("ttft", "tpot", "itl", "e2el", "ttft_scheduled", "e2el_scheduled", "send_lag")
ALSO = {"e2e": "e2el", "e2e_scheduled": "e2el_scheduled"}  # as people write them
OF_WHOLE_REQUESTS = frozenset({"ttft", "e2el", "ttft_scheduled", "e2el_scheduled"})  # infinite where a request failed
OF_STREAMS = frozenset({"ttft", "ttft_scheduled", "tpot", "itl"})  # an answer in one piece has none
PERCENTILES = (50, 90, 95, 99)

Figure = float | int | None


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """By the names of `METRICS`, in milliseconds; None: undefined. `itl` has one gap less than there were chunks."""

    ttft: float | None = None
    tpot: float | None = None
    itl: tuple[float, ...] = ()
    e2el: float | None = None
    ttft_scheduled: float | None = None
    e2el_scheduled: float | None = None
    send_lag: float | None = None


def latencies(record: RequestRecord) -> Latencies:
    """Of whatever came of it: one that was cut off has the TTFT and the gaps that it got, and no E2E and no TPOT."""
    sent, scheduled, chunks = record.sent, record.scheduled, record.chunks
    if sent is None or scheduled is None:
        return Latencies()
    lag = (sent - scheduled) * 1000
    if not chunks:
        return Latencies(send_lag=lag)
    first, last = chunks[0], chunks[-1]
    whole, streamed = record.outcome is Outcome.COMPLETED, record.streamed
    tokens = record.output_tokens
    return Latencies(
        ttft=(first - sent) * 1000 if streamed else None,
        tpot=(last - first) * 1000 / (tokens - 1) if streamed and whole and tokens > 1 else None,
        itl=tuple([(after - before) * 1000 for before, after in pairwise(chunks)]) if streamed else (),
        e2el=(last - sent) * 1000 if whole else None,
        ttft_scheduled=(first - scheduled) * 1000 if streamed else None,
        e2el_scheduled=(last - scheduled) * 1000 if whole else None,
        send_lag=lag,
    )


class Distributions:
    """A histogram of each latency over many requests, in milliseconds."""

    def __init__(self) -> None:
        self.of = {name: Histogram() for name in METRICS}

    def add(self, record: RequestRecord, measured: Latencies | None = None) -> None:
        """Count a request; `measured` are its latencies, if they are known already."""
        measured = measured or latencies(record)
        if measured.send_lag is not None:
            self.of["send_lag"].add(measured.send_lag)
        if record.outcome.failed:
            for name in OF_WHOLE_REQUESTS if record.streamed else OF_WHOLE_REQUESTS - OF_STREAMS:
                self.of[name].add(float("inf"))
        elif record.outcome is Outcome.COMPLETED:
            self.of["itl"].extend(measured.itl)
            for name in ("ttft", "tpot", "e2el", "ttft_scheduled", "e2el_scheduled"):
                if (value := getattr(measured, name)) is not None:
                    self.of[name].add(value)

    def merge(self, other: Distributions) -> None:
        """Count all that another one has."""
        for name, histogram in self.of.items():
            histogram.merge(other.of[name])

    def figures(self) -> dict[str, Figure]:
        """Those of every latency."""
        return {key: figure for name, histogram in self.of.items() for key, figure in figures(name, histogram).items()}


def figures(name: str, histogram: Histogram) -> dict[str, Figure]:
    """Statistics named as `vllm bench serve` names them; None: undefined, or among the failures."""
    percentiles = dict(zip(PERCENTILES, histogram.percentiles(PERCENTILES), strict=True))
    return {
        f"mean_{name}_ms": histogram.mean,
        f"std_{name}_ms": histogram.deviation,
        f"min_{name}_ms": histogram.minimum,
        f"max_{name}_ms": histogram.maximum,
        f"median_{name}_ms": percentiles[50],
        **{f"p{percent}_{name}_ms": value for percent, value in percentiles.items()},
        f"count_{name}": histogram.count,
    }
