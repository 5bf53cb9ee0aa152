"""Counting while a run goes on: in each process what happens to its requests, in the parent all of it together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from loadgen.live.state import RunState
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.latency import Distributions
from loadgen.outcome import Outcome, RequestRecord
from loadgen.self_watch import SelfFigures


class Counts(msgspec.Struct, frozen=True):
    """What one process has counted since the beginning; the counts of several processes add up."""

    due: int = 0
    sent: int = 0
    in_flight: int = 0
    queued: int = 0
    chunks: int = 0
    sessions_done: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Counts(*(a + b for a, b in zip(mine, others, strict=True)))


class Tally:
    """Counts in one process, from the moment a turn is due until its session is over."""

    __slots__ = ("_chunks", "_due", "_in_flight", "_queued", "_sent", "_sessions_done")

    def __init__(self) -> None:
        self._due = self._sent = self._in_flight = self._queued = self._chunks = self._sessions_done = 0

    def due(self) -> None:
        """A turn's moment has come."""
        self._due += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A due turn waits for a slot of --concurrency."""
        self._queued += 1
        try:
            yield
        finally:
            self._queued -= 1

    @contextmanager
    def running(self) -> Iterator[None]:
        """A turn is sent, and then in flight until its response is over."""
        self._sent += 1
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def count_chunk(self) -> None:
        """A chunk with text, reasoning or a tool call has come."""
        self._chunks += 1

    def session_done(self) -> None:
        """A session is over, whatever came of it."""
        self._sessions_done += 1

    @property
    def queued(self) -> int:
        """Turns that wait for a slot now."""
        return self._queued

    def counts(self) -> Counts:
        """All of it as it is now."""
        return Counts(self._due, self._sent, self._in_flight, self._queued, self._chunks, self._sessions_done)


# What is shown live. Without the gaps between chunks: TPOT tells the same, and there is one gap for each token.
LATENCIES_EVERY = 0.5  # seconds: states come more often than their histograms need to be copied
LATENCIES = ("ttft", "ttft_scheduled", "tpot", "e2el", "e2el_scheduled", "send_lag")


class Progress:
    """What the records of a run add up to, in the process that hears of all of them.

    `label` names the run. `began` is the moment of its beginning on the clock that `state` is asked by, which may lie
    ahead. `last_turn` and `last_second` are where a stop rule will end it.
    """

    def __init__(
        self,
        label: str,
        sessions: int,
        turns: int,
        began: float,
        speed: float = 1.0,
        last_turn: int | None = None,
        last_second: float | None = None,
    ) -> None:
        self.label, self.sessions, self.turns, self.began = label, sessions, turns, began
        self.last_turn, self.last_second = last_turn, last_second
        self.stopping: str | None = None  # why it ends early, once it does
        self._speeds = [(0.0, speed)]
        self._completed = self._input_tokens = self._output_tokens = self._ended_chunks = 0
        self._failures = Counter[Outcome]()
        self._first_failures: dict[Outcome, str] = {}
        self._latencies = Distributions()
        self._copied: tuple[float, dict[str, Histogram]] | None = None

    def set_speed(self, speed: float, now: float) -> None:
        """The trace goes by another speed from the moment `now` on."""
        if speed != self._speeds[-1][1]:
            self._speeds.append((max(0.0, now - self.began), speed))

    def take(self, record: RequestRecord) -> None:
        """Count a turn that has ended, or was not sent."""
        self._ended_chunks += len(record.chunks)
        if record.outcome is Outcome.COMPLETED:
            self._completed += 1
            self._input_tokens += record.input_tokens or 0
            self._output_tokens += record.output_tokens
        elif record.outcome.failed:
            self._failures[record.outcome] += 1
            self._first_failures.setdefault(record.outcome, record.detail)
        self._latencies.add(record)

    def state(self, now: float, counts: Sequence[Counts], processes: Sequence[SelfFigures] = ()) -> RunState:
        """The run at a moment of the clock, with what its client processes have counted and needed up to then.

        Its latencies may be those of half a second before.
        """
        together = sum(counts, Counts())
        return RunState(
            label=self.label,
            elapsed=max(0.0, now - self.began),
            sessions=self.sessions,
            turns=self.turns,
            sessions_done=together.sessions_done,
            due=together.due,
            queued=together.queued,
            sent=together.sent,
            in_flight=together.in_flight,
            completed=self._completed,
            failures=dict(self._failures),
            first_failures=dict(self._first_failures),
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            chunks=together.chunks,
            ended_chunks=self._ended_chunks,
            latencies=self._latencies_at(now),
            speeds=tuple(self._speeds),
            stopping=self.stopping,
            processes=tuple(processes),
            last_turn=self.last_turn,
            last_second=self.last_second,
        )

    def _latencies_at(self, now: float) -> dict[str, Histogram]:
        if self._copied is None or not 0 <= now - self._copied[0] < LATENCIES_EVERY:
            self._copied = now, {name: self._latencies.of[name].copy() for name in LATENCIES}
        return self._copied[1]
