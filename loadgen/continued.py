"""Requests that an engine goes on with after another one, which had looked up their prompts already. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from engine.protocol import Record, RequestState


@dataclass(slots=True)
class Counts:
    """Of the requests that go on here: their prompts, what was looked up once more, and what was found here too.

    `prompt_tokens` leaves out what siblings share with the first of them.
    """

    requests: int = 0
    prompt_tokens: int = 0
    looked_up_tokens: int = 0
    found_tokens: int = 0

    def merge(self, other: Counts) -> None:
        """Count all that another engine has."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def figures(self) -> dict[str, float | int | None]:
        """Under the names of an engine's figures."""
        return {f"continued_{one.name}": getattr(self, one.name) for one in fields(self)}


@dataclass(slots=True)
class Continued:
    """Takes the records after a snapshot with these requests."""

    counts: Counts = field(default_factory=Counts)
    _come: dict[str, int] = field(default_factory=dict)  # prompt tokens of those that have not joined the batch yet

    def begin(self, requests: Iterable[RequestState]) -> None:
        """Those that wait with tokens which they have not generated here."""
        waiting = [one for one in requests if one.status in ("waiting", "receiving") and not one.preemptions]
        self._come = {one.request: one.prompt_tokens for one in waiting if one.num_tokens > one.prompt_tokens}

    def add(self, record: Record) -> None:
        """Take a step."""
        come, counts = self._come, self.counts
        for arrived in record.arrived:
            come.pop(arrived.request, None)  # an id may be used again
            if arrived.generated_tokens:
                come[arrived.request] = arrived.prompt_tokens
                counts.requests += 1
        for joined in record.joined:
            prompt = come.pop(joined.request, None)
            if prompt is not None:
                counts.prompt_tokens += prompt - min(prompt, joined.shared_tokens)
                counts.looked_up_tokens += joined.looked_up_tokens
                counts.found_tokens += joined.cached_tokens
        for left in record.left:
            come.pop(left.request, None)


def merged_counts(parts: Iterable[Continued]) -> Counts:
    """All of them as one."""
    whole = Counts()
    for part in parts:
        whole.merge(part.counts)
    return whole
