"""States of runs to show: made by hand, and of a small run that never took place."""

from __future__ import annotations

import random

from loadgen.live.state import RunState
from loadgen.live.tally import Counts, Progress
from loadgen.outcome import Outcome, RequestRecord
from loadgen.self_watch import SelfFigures


def completed(
    index: int = 0, *, sent: float = 1.0, chunks: tuple[float, ...] = (1.5, 2.0), tokens: int = 2
) -> RequestRecord:
    """A turn that was answered, scheduled 0.25 s before it was sent."""
    return RequestRecord(
        session=f"s{index}",
        index=index,
        turn=0,
        outcome=Outcome.COMPLETED,
        scheduled=sent - 0.25,
        sent=sent,
        chunks=chunks,
        ended=chunks[-1],
        input_tokens=10,
        output_tokens=tokens,
    )


def failed(outcome: Outcome = Outcome.TIMEOUT, detail: str = "", index: int = 0) -> RequestRecord:
    return RequestRecord(
        session=f"s{index}", index=index, turn=0, outcome=outcome, scheduled=0.0, sent=0.0, ended=9.0, detail=detail
    )


def long_run(seconds: int = 90) -> list[RunState]:
    """A state each second of a run whose load rises until its 24 slots are full; some requests fail."""
    chance = random.Random(1)
    progress = Progress("replay", sessions=900, turns=1800, began=0.0, speed=1.0)
    states: list[RunState] = []
    due = ended = chunks = 0
    for second in range(seconds):
        due += 4 + second // 4
        answered = min(due - ended, 12)
        for index in range(ended, ended + answered):
            first = second + 0.2 + chance.random() / 10
            if index % 97 == 96:
                progress.take(failed(Outcome.TIMEOUT, "no answer within 30 s", index))
            elif index % 61 == 60:
                progress.take(failed(Outcome.HTTP_ERROR, "503: overloaded,\ntry again \x1b[31mlater", index))
            else:
                progress.take(completed(index, sent=second + 0.1, chunks=(first, first + chance.random()), tokens=40))
        ended += answered
        chunks += 40 * answered
        if second == 40:
            progress.set_speed(4.0, 40.0)
        waiting = due - ended
        figures = SelfFigures(
            wall_s=float(second), cpu_s=second * 0.23, ticks=20 * second, p99_lag_ms=0.4, max_lag_ms=9.0, late_ms=1.5
        )
        counts = Counts(due, ended + min(24, waiting), min(24, waiting), max(0, waiting - 24), chunks + 300, ended // 2)
        states.append(progress.state(float(second), [counts], [figures]))
    return states
