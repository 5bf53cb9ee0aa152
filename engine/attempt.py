"""What the device computes of a step when something goes wrong: less at a time where memory is short, else nothing.

Whoever the fault costs an answer is told; nobody else notices. Nothing has to be undone: counters advance at commit,
and rows that are computed again write the same KV to the same slots.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from engine.plan import PlannedRow, Sampled, ScoredToken, StepResult

LONGEST_TOLD = 300  # characters of an error

Compute = Callable[[Sequence[PlannedRow]], StepResult]
NOTHING = StepResult({}, 0.0, 0.0, 0.0, runs=0)

logger = logging.getLogger(__name__)


class Health:
    """How a device's last steps went."""

    def __init__(self) -> None:
        self.failures = 0  # steps in a row that failed, with none between them of which anything was computed
        self.fault = ""  # of the last step that had one
        self.ails = False  # whether the next step must be noted though it has no fault

    def note(self, result: StepResult) -> None:
        """A step ended; one that only moved blocks without a fault says nothing of how computing goes."""
        if result.fault:
            if result.runs and not self.ails:  # each record tells of it; the log, when it begins
                logger.warning("%s", result.fault)
            self.fault = result.fault
        if not result.runs and result.fault:
            self.failures += 1
        elif result.runs:
            self.failures = 0
        self.ails = bool(result.fault or self.failures)


def attempt(compute: Compute, rows: Sequence[PlannedRow]) -> StepResult:
    """Compute `rows`, if there are any. Without memory for all of them they are computed in parts; what the device has
    no memory for even alone is `lost`. After any other exception all of them are."""
    if not rows:
        return NOTHING
    begun = time.perf_counter()
    try:
        return compute(rows)
    except MemoryError:
        pass  # and whatever its frames held is free from here on
    except Exception as error:
        return _failed(rows, error, begun)
    try:
        return _in_parts(compute, rows, begun)
    except Exception as error:
        return _failed(rows, error, begun)


def one_line(error: Exception) -> str:
    """An exception's type and message, bounded, for a person."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return text if len(text) <= LONGEST_TOLD else f"{text[: LONGEST_TOLD - 1]}…"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _failed(rows: Sequence[PlannedRow], error: Exception, begun: float) -> StepResult:
    told = one_line(error)
    logger.error("computing a step of %s failed: %s", _counted(len(rows), "row"), told, exc_info=error)
    why = f"the step that computed this request failed: {told}; the engine goes on"
    lost = {row.request_id: why for row in rows}
    fault = f"computing failed: {told}"
    return StepResult({}, 0.0, time.perf_counter() - begun, 0.0, lost=lost, fault=fault, runs=0)


def _in_parts(compute: Compute, rows: Sequence[PlannedRow], begun: float) -> StepResult:
    """Compute in halves what has no memory at once, and these in halves, down to one token. A part of a request comes
    after all before it, and not at all if one of those failed."""
    lost: dict[str, str] = {}
    failed: dict[str, str] = {}
    results: list[StepResult] = []
    pending = [*reversed(halves(rows))]
    while pending:
        part = [row for row in pending.pop() if row.request_id not in lost and row.request_id not in failed]
        if not part:
            continue
        try:
            results.append(compute(part))
        except MemoryError as error:
            told = one_line(error)
        else:
            failed |= results[-1].failed
            continue
        if sum(row.count for row in part) > 1:
            pending += reversed(halves(part))
        else:
            lost[part[0].request_id] = (
                f"there is not enough memory to compute this request ({told}); the engine goes on"
            )
    for row in rows:  # a part that failed was not the one that has the siblings
        if row.request_id in failed:
            failed |= dict.fromkeys((one.id for one in row.siblings), failed[row.request_id])
    tokens = sum(row.count for row in rows)
    fault = f"not enough memory to compute {_counted(tokens, 'token')} at once: they were computed in "
    fault += _counted(len(results), "part")
    if lost:
        fault += f"; {len(lost)} of its {_counted(len(rows), 'row')} did not fit even so"
    if not results:
        logger.error("%s", fault)
    return _joined(results, begun, failed, lost, fault)


def halves(rows: Sequence[PlannedRow]) -> tuple[Sequence[PlannedRow], ...]:
    """`rows` as two parts of about as many tokens each, a row of several split where the half ends; itself if it is
    one token."""
    before = sum(row.count for row in rows) // 2
    if not before:
        return (rows,)
    first: list[PlannedRow] = []
    for index, row in enumerate(rows):
        if row.count > before:
            if not before:
                return first, rows[index:]
            left = msgspec.structs.replace(row, count=before, samples=False, siblings=())
            right = msgspec.structs.replace(row, start=row.start + before, count=row.count - before)
            return [*first, left], [right, *rows[index + 1 :]]
        first.append(row)
        before -= row.count
    raise ValueError("rows have no second half")


def _joined(
    results: Sequence[StepResult], begun: float, failed: dict[str, str], lost: dict[str, str], fault: str
) -> StepResult:
    """The parts of a step as one; `forward` has the time of the attempts that failed too."""
    sampled: dict[str, Sampled] = {}
    scored: dict[str, tuple[ScoredToken, ...]] = {}
    for result in results:
        sampled |= result.sampled
        for request, tokens in result.scored.items():
            scored[request] = scored.get(request, ()) + tokens
    prepare, sample = sum(result.prepare for result in results), sum(result.sample for result in results)
    forward = time.perf_counter() - begun - prepare - sample
    return StepResult(
        sampled, prepare, max(0.0, forward), sample, failed, scored, lost=lost, fault=fault, runs=len(results)
    )
