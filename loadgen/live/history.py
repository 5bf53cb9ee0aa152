"""How a run went so far, in bounded memory: a few numbers of its states, ever farther apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadgen.live.state import RunState

MOST = 512  # marks; then every second one goes
FIRST_STEP = 1.0  # seconds between them at the start


@dataclass(frozen=True, slots=True)
class Mark:
    """What had happened up to a moment, and what was in flight then."""

    elapsed: float
    due: int
    completed: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """What came and went a second between two marks, and what was in flight at the end."""

    seconds: float
    arrivals: float
    completions: float
    in_flight: int


class History:
    """The whole run, each stretch of it measured from mark to mark."""

    def __init__(self) -> None:
        self._marks = [Mark(0.0, 0, 0, 0)]
        self._step = FIRST_STEP

    def take(self, state: RunState) -> None:
        """Mark a state, unless the last mark is too near."""
        if state.elapsed < self._marks[-1].elapsed + self._step:
            return
        self._marks.append(Mark(state.elapsed, state.due, state.completed, state.in_flight))
        if len(self._marks) > MOST:
            self._marks = self._marks[::2]
            self._step *= 2

    def stretches(self, most: int) -> Sequence[Stretch]:
        """The run in at most so many stretches of about the same length, oldest first."""
        every = max(1, -(-(len(self._marks) - 1) // most))
        return [
            Stretch(
                seconds=after.elapsed - before.elapsed,
                arrivals=(after.due - before.due) / (after.elapsed - before.elapsed),
                completions=(after.completed - before.completed) / (after.elapsed - before.elapsed),
                in_flight=after.in_flight,
            )
            for before, after in pairwise(self._marks[::every])
        ]
