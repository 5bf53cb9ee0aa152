"""A run's state in words: the plain line, and the parts of it that the screen shows too."""

from __future__ import annotations

from loadgen.live.state import RunState
from loadgen.self_watch import LAG_LIMIT_MS


def number(value: float) -> str:
    """Three digits that count, or all of a whole part: `0.042`, `3.14`, `12.3`, `1,234`."""
    if value and abs(value) < 0.0005:
        return f"{value:.0e}"
    digits = 3 if abs(value) < 0.9995 else 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits == 3 else text


def rate(before: RunState, after: RunState, counter: str) -> float:
    """How much a counter of the state grew a second; 0 if no time passed."""
    seconds = after.elapsed - before.elapsed
    grown: int = getattr(after, counter) - getattr(before, counter)
    return grown / seconds if seconds > 0 else 0.0


def tokens(state: RunState) -> str:
    """What has been answered. Tokens are known of turns that are over; of the others their chunks are."""
    unfinished = f" and {state.open_chunks:,} chunks of unfinished turns" if state.open_chunks else ""
    return f"{state.output_tokens:,} output tokens{unfinished}"


def speed(state: RunState) -> str:
    """How fast the trace goes, and since when if that was changed; nothing at the usual speed."""
    if len(state.speeds) > 1:
        (_, before), (since, now) = state.speeds[-2:]
        return f"speed {now:g}x since second {since:.0f}, {before:g}x before"
    return f"speed {state.speed:g}x" if state.speed != 1 else ""


def own_trouble(state: RunState) -> str:
    """A warning if a client process has been too slow to measure by."""
    slow = [process for process in state.processes if process.bottleneck]
    if not slow:
        return ""
    worst = max(slow, key=lambda process: (process.p99_lag_ms or 0.0) / LAG_LIMIT_MS + process.cpu_share)
    lag = f"event loop late by {worst.p99_lag_ms or 0:.0f} ms at p99"
    return f"loadgen itself is slow (CPU {worst.cpu_share:.0%} of a core, {lag}): latencies include that"


def line(state: RunState, before: RunState | None) -> str:
    """All of it in one line, with the rate of chunks since an earlier state, or of the whole run without one.

    paged-top reads the sessions in it.
    """
    done = state.completed + state.failed
    whole = state.chunks / state.elapsed if state.elapsed else 0.0
    chunk_rate = whole if before is None else rate(before, state, "chunks")
    parts = [
        f"{state.label}: {state.elapsed:.0f} s",
        f"sessions {state.sessions_done}/{state.sessions}",
        f"turns {done}/{state.turns} done",
        f"{state.in_flight} running",
        f"{state.queued} waiting for a slot" if state.queued else "",
        f"{state.failed} failed",
        tokens(state),
        f"{chunk_rate:.1f} chunks/s{' in the mean' if before is None else ''}",
        speed(state),
        f"stopping ({state.stopping})" if state.stopping else "",
        own_trouble(state),
    ]
    return ", ".join(part for part in parts if part)
