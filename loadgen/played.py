"""What of a trace a run plays: its first sessions, scaled, without requests that the server's context cannot take.

Client processes and the look at a trace before its run go through the same, so that they mean the same sessions.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from loadgen.arrivals import Recorded, parse_arrivals
from loadgen.needs import Needs
from loadgen.settings import Settings
from loadgen.traces.formats import Format, TimeUnit, TraceFile, open_trace
from loadgen.traces.model import Header, Session, TraceError
from loadgen.traces.scale import fit, scaled, scaled_header, tokens_of

SAY_EVERY = 5.0  # seconds
NOTHING: Mapping[int, int] = {}

_encode = msgspec.msgpack.Encoder().encode


def trace_of(settings: Settings) -> TraceFile:
    """The trace of a run. Raises `TraceError`."""
    try:
        format = None if settings.format is None else Format(settings.format)
    except ValueError:
        raise TraceError(f"--format {settings.format}: allowed are {', '.join(Format)}") from None
    unit = None if settings.time_unit is None else TimeUnit(settings.time_unit)
    return open_trace(
        Path(settings.file), format, skip_bad=settings.skip_bad, block_size=settings.block_size, time_unit=unit
    )


def header_of(trace: TraceFile, settings: Settings) -> Header:
    """Its header, as the run has it. Raises `TraceError`."""
    return trace.header if settings.length_scale is None else scaled_header(trace.header, settings.length_scale)


def played(trace: TraceFile, settings: Settings, limit: int | None) -> Iterator[tuple[int, Session]]:
    """The sessions to play with their places in the trace; `limit` is the server's context in tokens.

    Raises `TraceError` for one that does not fit, unless such are left out or cut.
    """
    return ((index, session) for index, session in enumerate(_fitted(trace, settings, limit)) if session is not None)


def _fitted(trace: TraceFile, settings: Settings, limit: int | None) -> Iterator[Session | None]:
    """All sessions that are asked for; None for one that is left out. Raises `TraceError`."""
    sessions: Iterator[Session] = islice(trace.sessions(), settings.sessions)
    header, scale, policy = header_of(trace, settings), settings.length_scale or 1.0, settings.too_long
    if settings.length_scale is not None:
        sessions = scaled(sessions, trace.header, scale)
    return (session if limit is None else fit(session, limit, policy, header, scale) for session in sessions)


def is_done(done: bytes, index: int) -> bool:
    """Whether `Survey.done` has a session."""
    return done[index : index + 1] == b"\1"


@dataclass(frozen=True, slots=True)
class Survey:
    """A trace read once before it is played: that it can be, how much it is, and what it needs."""

    sessions: int
    turns: int
    longest: int  # tokens of a request, prompt and answer together, as far as the trace tells
    left_out: int  # sessions, for the server's context
    trace: TraceFile
    needs: Needs
    digest: str  # of the sessions, to know them again by
    done: bytes  # a 1 at the index of each session of which every turn is over; for `is_done`


async def survey_aside(
    settings: Settings, limit: int | None, say: Callable[[str], None], over: Mapping[int, int] = NOTHING
) -> Survey:
    """`survey` in a thread of its own, which ends when nobody waits for it: a long trace must not outlive Ctrl-C."""
    given_up = threading.Event()
    try:
        return await asyncio.to_thread(survey, settings, limit, say, over, given_up.is_set)
    finally:
        given_up.set()


def survey(
    settings: Settings,
    limit: int | None,
    say: Callable[[str], None],
    over: Mapping[int, int] = NOTHING,
    given_up: Callable[[], bool] = lambda: False,
) -> Survey:
    """Read and check all that will be played. Raises `TraceError`; `say` gets a line now and then.

    `over` is the turns of a run that are over, by a session's index.
    """
    trace, arrivals = trace_of(settings), parse_arrivals(settings.arrivals, settings.seed)
    sessions = turns = longest = left_out = 0
    needs = Needs(settings)
    digest, done = hashlib.blake2b(digest_size=8), bytearray()
    said = time.monotonic()
    for index, session in enumerate(_fitted(trace, settings, limit)):
        if given_up():
            raise TraceError(f"{trace.path}: was not read to its end")
        digest.update(_encode(session))
        if over:
            done.append(session is not None and over.get(index) == len(session.turns))
        if session is None:
            left_out += 1
            continue
        if session.arrival is None and isinstance(arrivals, Recorded):
            raise TraceError(
                f"{trace.path}: has no times: say when its sessions arrive, with --rate R, --users N or --arrivals SPEC"
            )
        sessions += 1
        turns += len(session.turns)
        longest = max(longest, max(map(tokens_of, session.turns)))
        needs.add(session)
        if time.monotonic() - said > SAY_EVERY:
            said = time.monotonic()
            say(f"reading {trace.path}: {sessions:,} sessions, {turns:,} turns so far")
    if not sessions:
        raise TraceError(f"{trace.path}: has no session to play")
    if settings.sessions is not None and settings.sessions > sessions + left_out:
        raise TraceError(f"--sessions {settings.sessions}: {trace.path} has {sessions + left_out} sessions")
    return Survey(sessions, turns, longest, left_out, trace, needs, digest.hexdigest(), bytes(done))
