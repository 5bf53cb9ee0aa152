"""A run tells the paged-engine that it plays against how it goes, so that every paged-top on that engine shows it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

import aiohttp

from engine.protocol import MAX_WORDS, LoadLatency, LoadRun, encode
from loadgen.live.state import RunState
from loadgen.metrics.histogram import Histogram
from loadgen.outcome import Outcome

EVERY = 1.0  # seconds
TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_NO_ROUTE = (401, 403, 404, 405, 501)  # of an engine that takes no such word, or not from us
_IGNORED = (aiohttp.ClientError, TimeoutError, OSError)  # it is no part of the run


async def announce(read: Callable[[], RunState], http: aiohttp.ClientSession, url: str, trace: str) -> None:
    """Tell the engine at `url` of a run until cancelled, and then that it is over. Nothing that it answers matters."""
    address = f"{url}/engine/loads/{secrets.token_hex(8)}"
    taken = True
    try:
        while taken:
            # Percentiles of many requests take milliseconds, and requests that fall due meanwhile are not to wait.
            run = await asyncio.to_thread(told, read(), trace)
            with suppress(*_IGNORED):
                async with http.put(address, data=encode(run), timeout=TIMEOUT, allow_redirects=False) as reply:
                    taken = reply.status not in _NO_ROUTE
            await asyncio.sleep(EVERY)
    finally:
        if taken:
            with suppress(*_IGNORED):
                async with http.delete(address, timeout=TIMEOUT, allow_redirects=False):
                    pass


def told(state: RunState, trace: str) -> LoadRun:
    """A state as others are told of it: in seconds, and in bounded words."""
    latencies, processes = state.latencies, state.processes
    lag = latencies.get("send_lag")
    send_lag = lag.percentile(99) if lag is not None else None
    return LoadRun(
        label=_words(state.label),
        trace=_words(trace),
        elapsed=state.elapsed,
        share=state.share,
        sessions=state.sessions,
        sessions_done=state.sessions_done,
        turns=state.turns,
        due=state.due,
        queued=state.queued,
        sent=state.sent,
        in_flight=state.in_flight,
        completed=state.completed,
        failed=state.failed,
        output_tokens=state.output_tokens,
        speed=state.speed,
        ttft=_latency(latencies.get("ttft")),
        ttft_scheduled=_latency(latencies.get("ttft_scheduled")),
        tpot=_latency(latencies.get("tpot")),
        e2e=_latency(latencies.get("e2el")),
        e2e_scheduled=_latency(latencies.get("e2el_scheduled")),
        left=state.left,
        send_lag=None if send_lag is None else _seconds(send_lag),
        loop_lag=max((_seconds(one.p99_lag_ms) for one in processes if one.p99_lag_ms is not None), default=None),
        cpu_share=max((one.cpu_share for one in processes), default=0.0),
        bottleneck=any(one.bottleneck for one in processes),
        failure=_words(_failure(state)),
        stopping=_words(state.stopping or ""),
    )


def _latency(histogram: Histogram | None) -> LoadLatency:
    if histogram is None:
        return LoadLatency()
    p50, p99 = (None if value is None else _seconds(value) for value in histogram.percentiles((50, 99)))
    return LoadLatency(p50, p99, histogram.count + histogram.infinite)


def _seconds(milliseconds: float) -> float:
    """An event loop may wake a moment early: what is sent then is not late."""
    return max(0.0, round(milliseconds / 1000, 6))


def _failure(state: RunState) -> str:
    """The most frequent kind, causes before consequences, and what the first of it said."""
    kinds = sorted(state.failures.items(), key=lambda kind: (kind[0] is Outcome.NOT_SENT, -kind[1]))
    if not kinds:
        return ""
    kind = kinds[0][0]
    detail = " ".join(state.first_failures.get(kind, "").split())
    return f"{kind}: {detail}" if detail else str(kind)


def _words(text: str) -> str:
    """Half a surrogate pair, as in names of files that are no text, could not be sent."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_WORDS])
