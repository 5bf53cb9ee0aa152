"""A server's own figures over the time of a run, from its /metrics: how its counters grew, how high its gauges were."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence

import aiohttp

from loadgen.server_terms import COUNTERS, GAUGES, HISTOGRAMS, Buckets, Labels, Reading, read

Figure = float | int | str | bool | None

PATHS = ("/metrics", "/prometheus/metrics")  # the second is TensorRT-LLM's
EVERY = 1.0  # seconds between looks at the gauges
TIMEOUT = aiohttp.ClientTimeout(total=10)
PERCENTILES = (50, 90, 99)
_SETTLE = 0.1  # seconds: some servers count a request's tokens a moment after they have answered it
_SETTLES = 20


class ServerMetrics:
    """Looks at a server from `start` to `finish`; `close` ends it at any time."""

    def __init__(self, http: aiohttp.ClientSession, where: str, first: Reading, every: float) -> None:
        self._http, self.where, self.first = http, where, first
        self._began = time.monotonic()
        self._gauges = [first.gauges]
        self._failed = 0
        self._looking = asyncio.create_task(self._look(every))

    @classmethod
    async def start(cls, http: aiohttp.ClientSession, url: str, every: float = EVERY) -> ServerMetrics | None:
        """Look for the first time; None if the server at this root has no metrics that are known here."""
        for path in PATHS:
            if (first := await _scrape(http, url + path)) is not None:
                return cls(http, url + path, first, every)
        return None

    async def _look(self, every: float) -> None:
        looks = 0
        while True:
            looks = max(looks + 1, math.ceil((time.monotonic() - self._began) / every))
            await asyncio.sleep(self._began + looks * every - time.monotonic())
            if (reading := await _scrape(self._http, self.where, gauges_alone=True)) is None:
                self._failed += 1
            else:
                self._gauges.append(reading.gauges)

    async def finish(self) -> dict[str, Figure] | None:
        """The figures from the start to now; None if the server tells no more."""
        await self.close()
        if not self._looking.cancelled():
            self._looking.result()  # raises what went wrong
        seconds = time.monotonic() - self._began
        if (last := await self._settled()) is None:
            return None
        seen: dict[str, Figure] = {
            "names_of": last.kind,
            "where": self.where,
            "seconds": seconds,
            "looks": len(self._gauges),
            "failed_looks": self._failed,
        }
        return seen | growth(self.first, last) | levels(self._gauges)

    async def _settled(self) -> Reading | None:
        """The first reading after which the counters stand still, or the last one that there was time for."""
        last = await _scrape(self._http, self.where)
        for _ in range(_SETTLES):
            await asyncio.sleep(_SETTLE)
            again = await _scrape(self._http, self.where)
            if again is None or (last is not None and again.counters == last.counters):
                break
            last = again
        return last

    async def close(self) -> None:
        """Look no more."""
        self._looking.cancel()
        await asyncio.wait([self._looking])


async def _scrape(http: aiohttp.ClientSession, where: str, gauges_alone: bool = False) -> Reading | None:
    """None if nothing came that can be read."""
    try:
        async with http.get(where, timeout=TIMEOUT) as reply:
            return read(await reply.text(), gauges_alone) if reply.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def levels(gauges: Sequence[Mapping[str, float]]) -> dict[str, Figure]:
    """Mean and maximum of each gauge over all looks; None where the server has none."""
    seen: dict[str, Figure] = {}
    for term in GAUGES:
        values = [look[term] for look in gauges if term in look]
        seen[f"mean_{term}"] = sum(values) / len(values) if values else None
        seen[f"max_{term}"] = max(values, default=None)
    return seen


def growth(first: Reading, last: Reading) -> dict[str, Figure]:
    """How much was counted between two looks, in tokens, requests and milliseconds. None: not told, or unknown.

    A counter that fell began anew: then nobody knows what it had reached, and `restarted` is True.
    """
    grown: dict[str, float | None] = {
        term: _grown(first.counters.get(term, {}), last.counters.get(term)) for term in COUNTERS
    }
    figures: dict[str, Figure] = {
        "restarted": any(term in last.counters and value is None for term, value in grown.items())
    }
    hit_rate = _share(grown["prefix_hit_tokens"], grown["prefix_queried_tokens"])
    if hit_rate is None:
        hit_rate = _share(grown["prefix_hit_blocks"], grown["prefix_queried_blocks"])
    for term, value in grown.items():
        if not term.endswith("_blocks"):
            figures[term] = None if value is None else round(value)
    figures["prefix_hit_rate"] = hit_rate
    for term in HISTOGRAMS:
        figures |= _latency(term, _between(first.histograms.get(term, {}), last.histograms.get(term)))
    return figures


def _grown(before: Mapping[Labels, float], after: Mapping[Labels, float] | None) -> float | None:
    """Over all series; one that was not there before began at 0."""
    if after is None or any(labels not in after or after[labels] < value for labels, value in before.items()):
        return None
    return sum(value - before.get(labels, 0.0) for labels, value in after.items())


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _between(before: Mapping[Labels, Buckets], after: Mapping[Labels, Buckets] | None) -> Buckets | None:
    """What came between two looks, in all series together; None if that is nothing, or unknown."""
    if after is None or not before.keys() <= after.keys():
        return None
    bounds = {tuple(sorted(buckets.upto)) for buckets in (*after.values(), *before.values())}
    if len(bounds) != 1:
        return None
    upto = dict.fromkeys(sorted(*bounds), 0.0)
    total = 0.0
    for labels, buckets in after.items():
        earlier = before.get(labels)
        for bound, count in buckets.upto.items():
            came = count - (earlier.upto[bound] if earlier else 0.0)
            if came < 0:
                return None
            upto[bound] += came
        total += buckets.total - (earlier.total if earlier else 0.0)
    return Buckets(upto, total) if max(upto.values()) > 0 else None


def _latency(term: str, buckets: Buckets | None) -> dict[str, Figure]:
    """The mean, and what the percentiles are at most: their bucket's bound. From seconds to milliseconds."""
    count = 0.0 if buckets is None else max(buckets.upto.values())
    mean = None if buckets is None else buckets.total / count * 1000
    figures: dict[str, Figure] = {f"mean_{term}_ms": mean}
    for percent in PERCENTILES:
        bound = None if buckets is None else at_most(buckets, percent)
        figures[f"p{percent}_{term}_at_most_ms"] = None if bound is None else bound * 1000
    figures[f"count_{term}"] = None if buckets is None else round(count)
    return figures


def at_most(buckets: Buckets, percent: float) -> float | None:
    """The bound below which that many percent of the values are; None beyond the last finite one.

    Prometheus would go on to guess a place between the bounds, which may be far from each other.
    """
    wanted = max(buckets.upto.values()) * percent / 100
    bound = min(bound for bound, count in buckets.upto.items() if count >= wanted)
    return None if bound == math.inf else bound
