"""Faults that are made to happen, for tests of what the engine does about them (`--fault`). Off unless asked for."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.plan import PlannedRow, Runner, StepPlan, StepResult

if TYPE_CHECKING:
    from engine.core import EngineCore

# What each kind does, and what its argument is (empty: it takes none).
KINDS = {
    "step-error": ("", "computing raises an error when it is done: its results are lost"),
    "move-error": ("", "the first step from then on that copies or swaps blocks raises an error and moves none"),
    "memory": ("TOKENS", "to compute more than so many tokens at once there is no memory"),
    "nan": ("", "the first logits of a step, of whoever samples or has its prompt scored, are not numbers"),
    "slow": ("SECONDS", "computing takes so much longer"),
    "hang": ("", "computing never ends"),
    "kill": ("", "the engine's process kills itself (SIGKILL) while it computes"),
    "exit": ("", "the engine's process ends while it computes, and says nothing"),
    "plan-error": ("", "an error outside the device's work, before a step is planned"),
    "corrupt": ("", "before a step is planned, a block of a request that runs is counted once too often"),
    "slow-transfer": ("SECONDS", "copying each piece of KV from another engine takes so much longer"),
    "transfer-error": ("", "copying KV from another engine raises an error"),
}
BEFORE_PLAN = ("plan-error", "corrupt")
TRANSFERS = ("slow-transfer", "transfer-error")
_SPEC = re.compile(r"(?P<kind>[a-z-]+)(=(?P<argument>[0-9.]{1,15}))?((?P<how>[@%])(?P<step>[0-9]{1,15}))?")


class InjectedError(RuntimeError):
    """Made to happen by `--fault`."""


class Fault(NamedTuple):
    """One fault: at step `first`, and every so many steps from there on (0: never again)."""

    text: str
    kind: str
    amount: float
    first: int
    every: int


def parse(text: str) -> Fault:
    """A fault from `KIND[=ARGUMENT]@STEP` (once) or `KIND[=ARGUMENT]%N` (every N steps); raises ValueError."""
    match = _SPEC.fullmatch(text)
    kind = match["kind"] if match else ""
    if match is None or kind not in KINDS:
        known = ", ".join(f"{kind}={argument}" if argument else kind for kind, (argument, _) in KINDS.items())
        raise ValueError(f"must be one of {known}, followed by @STEP (once) or %N (every N steps), got {text!r}")
    wanted, argument = KINDS[kind][0], match["argument"]
    if bool(wanted) != bool(argument):
        form = f"{kind}={wanted}" if wanted else f"{kind}, without an argument"
        raise ValueError(f"must be {form}, got {text!r}")
    amount = _amount(text, kind, wanted, argument)
    if match["how"] is None:
        if kind != "memory":
            raise ValueError(f"must say when: {kind} is followed by @STEP (once) or %N (every N steps), got {text!r}")
        return Fault(text, kind, amount, 1, 1)
    step = int(match["step"])
    if step < 1:
        raise ValueError(f"must name a step from 1 on, got {text!r}")
    return Fault(text, kind, amount, step, step if match["how"] == "%" else 0)


def _amount(text: str, kind: str, wanted: str, argument: str | None) -> float:
    if argument is None:
        return 0.0
    try:
        return float(int(argument) if wanted == "TOKENS" else float(argument))
    except ValueError:
        number = "a whole number" if wanted == "TOKENS" else "a number"
        raise ValueError(f"must be {kind}={wanted} with {number}, got {text!r}") from None


class Faults:
    """Those of one engine, and when each is due next. Steps are counted from 1: those of the device's wrapper are the
    ones that it was given, the others those before which something lived. Of transfers, each is a step.

    Raises ValueError, with what is allowed, for a fault it does not know.
    """

    def __init__(self, wanted: Sequence[str]) -> None:
        self._due = {fault: fault.first for fault in map(parse, wanted)}
        self._steps = 0

    def wrap(self, runner: Runner) -> Runner:
        """The runner, with the faults of the device in it."""
        device = [fault.text for fault in self._due if fault.kind not in BEFORE_PLAN + TRANSFERS]
        return FaultyRunner(runner, Faults(device)) if device else runner

    def before_step(self, core: EngineCore) -> None:
        """Make those happen that lie outside the runner."""
        if not self._due or not core.has_work:
            return
        self._steps += 1
        if (error := self.take("plan-error", self._steps)) is not None:
            raise InjectedError(f"an error made to happen by --fault {error.text}")
        holding = next((request for request in core.scheduler.running if request.table), None)
        if holding is not None and self.take("corrupt", self._steps) is not None:
            core.pool.references[holding.table[-1]] += 1

    def of_transfers(self) -> Faults:
        """Those that a connector makes happen, counted by its transfers."""
        return Faults([fault.text for fault in self._due if fault.kind in TRANSFERS])

    def before_transfer(self) -> float:
        """How many seconds longer each piece of it takes. Raises InjectedError if it is to fail."""
        self._steps += 1
        slow = self.take("slow-transfer", self._steps)
        if (error := self.take("transfer-error", self._steps)) is not None:
            raise InjectedError(f"an error made to happen by --fault {error.text}")
        return slow.amount if slow is not None else 0.0

    def find(self, kind: str, step: int) -> Fault | None:
        """One of a kind that is due, if there is one: from its step on until it is taken."""
        return next((fault for fault, due in self._due.items() if fault.kind == kind and step >= due), None)

    def take(self, kind: str, step: int) -> Fault | None:
        """One of a kind that is due; it happens now."""
        fault = self.find(kind, step)
        if fault is not None and fault.every:
            self._due[fault] = (step // fault.every + 1) * fault.every
        elif fault is not None:
            del self._due[fault]
        return fault


class FaultyRunner:
    """A runner with the device's faults."""

    def __init__(self, runner: Runner, faults: Faults) -> None:
        self.runner = runner
        self._faults = faults
        self._step = 0
        self._most_tokens: float | None = None  # that this step has memory for

    def move(self, plan: StepPlan) -> float:
        self._step += 1
        self._most_tokens = None
        if plan.num_moves and (fault := self._faults.take("move-error", self._step)) is not None:
            raise InjectedError(f"an error made to happen by --fault {fault.text}")
        return self.runner.move(plan)

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        self._end_process()
        self._limit_memory(sum(row.count for row in rows))
        if (fault := self._faults.take("slow", self._step)) is not None:
            time.sleep(fault.amount)
        if any(row.samples or row.scored for row in rows) and self._faults.take("nan", self._step) is not None:
            result = self._compute_nan(rows)
        else:
            result = self.runner.compute(rows)
        if (fault := self._faults.take("step-error", self._step)) is not None:
            raise InjectedError(f"an error made to happen by --fault {fault.text}")
        return result

    def _end_process(self) -> None:
        if self._faults.take("kill", self._step) is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._faults.take("exit", self._step) is not None:
            os._exit(3)
        if self._faults.take("hang", self._step) is not None:
            while True:
                time.sleep(3600)

    def _limit_memory(self, tokens: int) -> None:
        """Memory that is short is short for all of a step."""
        if self._most_tokens is None:
            fault = self._faults.find("memory", self._step)
            if fault is None or tokens <= fault.amount:
                return
            self._faults.take("memory", self._step)
            self._most_tokens = fault.amount
        if tokens > self._most_tokens:
            raise MemoryError(f"{tokens} tokens at once, and memory for {self._most_tokens:g} by --fault")

    def _compute_nan(self, rows: Sequence[PlannedRow]) -> StepResult:
        """Compute with a model whose first row of logits is spoilt before anything looks at it."""
        model: Any = self.runner.model  # type: ignore[attr-defined]  # a ModelRunner's: no other has logits
        logits, spoilt = model.logits, False

        def spoil(hidden: Any) -> Any:
            nonlocal spoilt
            found = logits(hidden)
            if len(found) and not spoilt:
                found, spoilt = found.clone(), True
                found[0] = float("nan")
            return found

        model.logits = spoil
        try:
            return self.runner.compute(rows)
        finally:
            del model.logits
