"""Requests in two classes by the length of their prompts: those that wait beside long ones are told apart. Pure.

A mean or a tail of all requests says nothing of short chats among prompts of thousands of tokens: these have latencies
of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loadgen.metrics.latency import Distributions, Figure, Latencies, figures
from loadgen.outcome import Outcome, RequestRecord

SHORT, LONG = "short", "long"
CLASSES = (SHORT, LONG)
SPLIT = "split_prompt_tokens"  # in the recipe of a trace that has short prompts among long ones
LATENCIES = ("ttft", "ttft_scheduled", "itl", "tpot", "e2el_scheduled")


@dataclass(slots=True)
class _Class:
    turns: int = 0
    completed: int = 0
    failed: int = 0
    distributions: Distributions = field(default_factory=Distributions)

    def merge(self, other: _Class) -> None:
        self.turns += other.turns
        self.completed += other.completed
        self.failed += other.failed
        self.distributions.merge(other.distributions)

    def figures(self) -> dict[str, Figure]:
        told: dict[str, Figure] = {"turns": self.turns, "completed": self.completed, "failed": self.failed}
        for name in LATENCIES:
            told |= figures(name, self.distributions.of[name])
        return told


class PromptClasses:
    """Prompts of up to `split` tokens are short, all others long. One of unknown length, as that of a chat that failed,
    is in neither."""

    def __init__(self, split: int) -> None:
        self.split = split
        self.of = {name: _Class() for name in CLASSES}
        self.untold = 0

    def add(self, record: RequestRecord, measured: Latencies) -> None:
        """Count a request with its latencies."""
        tokens = record.asked_input if record.input_tokens is None else record.input_tokens
        if tokens is None:
            self.untold += 1
            return
        chosen = self.of[SHORT if tokens <= self.split else LONG]
        chosen.turns += 1
        chosen.completed += record.outcome is Outcome.COMPLETED
        chosen.failed += record.outcome.failed
        chosen.distributions.add(record, measured)

    def merge(self, other: PromptClasses) -> None:
        """Count all that another one has. Raises ValueError if it is split elsewhere."""
        if self.split != other.split:
            raise ValueError(f"classes split at {self.split} and at {other.split} prompt tokens do not merge")
        self.untold += other.untold
        for name, one in self.of.items():
            one.merge(other.of[name])

    def figures(self) -> dict[str, object]:
        """Those of both, under the names of a summary."""
        return {
            "split_prompt_tokens": self.split,
            "untold": self.untold,
            "of": {name: one.figures() for name, one in self.of.items()},
        }
