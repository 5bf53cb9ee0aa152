"""From the records of a run to its figures, by the definitions this project uses. Pure.

TTFT is the first chunk that carries content - sent; E2E the last one - sent; TPOT (E2E - TTFT) / (output
tokens - 1), undefined for one token; ITL the gaps between such chunks, pooled over the completed requests.
The same from `scheduled` hides no queueing. A request that failed counts as infinitely slow in the
percentiles of TTFT and E2E: a percentile that falls among the failures is None, never a finite number.
Requests cut short by Ctrl-C, and those not reached, are in no figure but their own counts: rates are of completed
requests over the whole time.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadgen.outcome import Outcome, RequestRecord

Figure = float | int | None
PERCENTILES = (50, 90, 95, 99)
METRICS = ("ttft", "tpot", "itl", "e2el", "ttft_scheduled", "e2el_scheduled", "send_lag")


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile of sorted values with linear interpolation between neighbours."""
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    share = position - low
    if share == 0 or ordered[low] == ordered[low + 1]:
        return ordered[low]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * share


@dataclass(frozen=True, slots=True)
class Distribution:
    """Measured values in milliseconds, and how many more requests failed and never gave one."""

    values: tuple[float, ...]
    failures: int = 0

    def figures(self, name: str) -> dict[str, Figure]:
        """Statistics named as `vllm bench serve` names them; None: undefined, or among the failures."""
        ordered = [*sorted(self.values), *[math.inf] * self.failures]
        measured = self.values
        out: dict[str, Figure] = {
            f"mean_{name}_ms": statistics.fmean(measured) if measured else None,
            f"std_{name}_ms": statistics.pstdev(measured) if measured else None,
            f"min_{name}_ms": min(measured, default=None),
            f"max_{name}_ms": max(measured, default=None),
        }
        for percent in PERCENTILES:
            value = percentile(ordered, percent) if ordered else math.inf
            out[f"p{percent}_{name}_ms"] = value if math.isfinite(value) else None
        out[f"median_{name}_ms"] = out[f"p50_{name}_ms"]
        out[f"count_{name}"] = len(measured)
        return out


def _milliseconds(later: float, earlier: float) -> float:
    return (later - earlier) * 1000


def distributions(records: Iterable[RequestRecord]) -> dict[str, Distribution]:
    """Every latency's distribution, by the names of `METRICS`."""
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    failures = 0
    for record in records:
        if record.sent is not None and record.scheduled is not None:
            values["send_lag"].append(_milliseconds(record.sent, record.scheduled))
        if record.outcome.failed:
            failures += 1
        if record.outcome is not Outcome.COMPLETED or not record.chunks:
            continue
        assert record.sent is not None
        assert record.scheduled is not None
        first, last = record.chunks[0], record.chunks[-1]
        values["ttft"].append(_milliseconds(first, record.sent))
        values["e2el"].append(_milliseconds(last, record.sent))
        values["ttft_scheduled"].append(_milliseconds(first, record.scheduled))
        values["e2el_scheduled"].append(_milliseconds(last, record.scheduled))
        values["itl"].extend(_milliseconds(after, before) for before, after in pairwise(record.chunks))
        if record.output_tokens > 1:
            values["tpot"].append(_milliseconds(last, first) / (record.output_tokens - 1))
    whole_request = ("ttft", "e2el", "ttft_scheduled", "e2el_scheduled")
    return {name: Distribution(tuple(values[name]), failures if name in whole_request else 0) for name in METRICS}


def token_source(records: Iterable[RequestRecord]) -> str:
    """Where the output token counts of the completed requests come from."""
    sources = {record.usage for record in records if record.outcome is Outcome.COMPLETED}
    if not sources:
        return "none"
    if len(sources) == 2:
        return "usage, else chunks"
    return "usage" if True in sources else "chunks"


def duration(records: Iterable[RequestRecord]) -> float:
    """Seconds from the first send to the end of the last response; 0 if nothing was sent."""
    times = [(record.sent, record.ended) for record in records if record.sent is not None and record.ended is not None]
    return max(ended for _, ended in times) - min(sent for sent, _ in times) if times else 0.0


def summarize(records: Sequence[RequestRecord]) -> dict[str, object]:
    """The summary of a run, under the names of `vllm bench serve` where it has one."""
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    outcomes = Counter(record.outcome for record in records)
    seconds = duration(records)
    output_tokens = sum(record.output_tokens for record in completed)
    told_inputs = [record.input_tokens for record in completed if record.input_tokens is not None]
    input_tokens = sum(told_inputs) if len(told_inputs) == len(completed) else None

    def per_second(amount: int | None) -> float | None:
        return None if amount is None or seconds == 0 else amount / seconds

    sessions: dict[str, bool] = {}
    for record in records:
        whole = record.outcome is Outcome.COMPLETED
        sessions[record.session] = sessions.get(record.session, True) and whole
    out: dict[str, object] = {
        "completed": len(completed),
        "failed": sum(record.outcome.failed for record in records),
        "interrupted": outcomes[Outcome.INTERRUPTED],
        "interrupted_chunks": sum(len(record.chunks) for record in records if record.outcome is Outcome.INTERRUPTED),
        "not_reached": outcomes[Outcome.NOT_REACHED],
        "failures": {str(outcome): count for outcome, count in sorted(outcomes.items()) if outcome.failed},
        "turns": len(records),
        "sessions": len(sessions),
        "sessions_completed": sum(sessions.values()),
        "duration": seconds,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": per_second(len(completed)),
        "output_throughput": per_second(output_tokens),
        "total_token_throughput": per_second(None if input_tokens is None else input_tokens + output_tokens),
        "token_source": token_source(records),
        "total_chunks": sum(len(record.chunks) for record in completed),
        "other_length_than_asked": sum(record.output_tokens != record.requested_tokens for record in completed),
    }
    for name, distribution in distributions(records).items():
        out.update(distribution.figures(name))
    return out
