"""One moment of a run as data that stays as it is: everything the live screen, the plain lines and the stop rules know.

All of it was counted or measured. Amounts are since the run's beginning, so that rates come from any two states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadgen.metrics.histogram import Histogram
from loadgen.outcome import Outcome
from loadgen.self_watch import SelfFigures


@dataclass(frozen=True, slots=True)
class RunState:
    """A moment of a run, `elapsed` seconds after its beginning.

    Turns become due; then they wait for a slot (`queued`) until they are `sent`, are `in_flight`, and end as completed
    or failed. Tokens are those of completed turns, as their token source counts them; `chunks` are all that have come,
    `ended_chunks` those of turns that have ended. `latencies` are milliseconds, by the names of their metrics.
    """

    label: str
    elapsed: float
    sessions: int  # to be played
    turns: int
    sessions_done: int = 0
    due: int = 0
    queued: int = 0
    sent: int = 0
    in_flight: int = 0
    completed: int = 0
    failures: Mapping[Outcome, int] = field(default_factory=dict)
    first_failures: Mapping[Outcome, str] = field(default_factory=dict)  # in the words of the first of its kind
    input_tokens: int = 0
    output_tokens: int = 0
    chunks: int = 0
    ended_chunks: int = 0
    latencies: Mapping[str, Histogram] = field(default_factory=dict)
    speeds: tuple[tuple[float, float], ...] = ((0.0, 1.0),)  # (elapsed, the speed from then on)
    stopping: str | None = None  # why it ends early
    processes: tuple[SelfFigures, ...] = ()  # what each client process needed so far
    last_turn: int | None = None  # a stop rule ends the run after so many turns
    last_second: float | None = None  # or then

    @property
    def failed(self) -> int:
        """Turns that failed, and those never sent because an earlier one did."""
        return sum(self.failures.values())

    @property
    def ended(self) -> int:
        """Turns that were sent and are over, whatever came of them."""
        return self.completed + self.errors

    @property
    def errors(self) -> int:
        """Failures of turns that were tried: without those that only lacked the turn before."""
        return self.failed - self.failures.get(Outcome.NOT_SENT, 0)

    @property
    def open_chunks(self) -> int:
        """Chunks of turns that have not ended yet."""
        return max(0, self.chunks - self.ended_chunks)

    @property
    def speed(self) -> float:
        """Trace seconds in a second."""
        return self.speeds[-1][1]

    @property
    def share(self) -> float:
        """How much of the run is done, from 0 to 1: by the nearest of its turns and of what the stop rules allow."""
        done = (self.completed + self.failed) / self.turns if self.turns else 1.0
        by_turns = self.ended / self.last_turn if self.last_turn else 0.0
        by_time = self.elapsed / self.last_second if self.last_second else 0.0
        return min(1.0, max(done, by_turns, by_time))

    @property
    def left(self) -> float | None:
        """Seconds to the end if it goes on as it did so far; None while nothing has ended."""
        share = self.share
        return self.elapsed * (1 - share) / share if share else None
