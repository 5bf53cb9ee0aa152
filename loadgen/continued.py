"""Requests that an engine goes on with after another one, which had looked up their prompts already. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from engine.protocol import Record, RequestState


@dataclass(slots=True)
class Counts:
    """Of the requests that go on here: what was looked up once more, and found here too."""

    requests: int = 0
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
    _come: set[str] = field(default_factory=set)  # that have not joined the batch yet

    def begin(self, requests: Iterable[RequestState]) -> None:
        """Those that wait with tokens which they have not generated here."""
        waiting = [one for one in requests if one.status in ("waiting", "receiving") and not one.preemptions]
        self._come = {one.request for one in waiting if one.num_tokens > one.prompt_tokens}

    def add(self, record: Record) -> None:
        """Take a step."""
        come, counts = self._come, self.counts
        for arrived in record.arrived:
            come.discard(arrived.request)  # an id may be used again
            if arrived.generated_tokens:
                come.add(arrived.request)
                counts.requests += 1
        for joined in record.joined:
            if joined.request in come:
                come.remove(joined.request)
                counts.looked_up_tokens += joined.looked_up_tokens
                counts.found_tokens += joined.cached_tokens
        come.difference_update(left.request for left in record.left)


def merged_counts(parts: Iterable[Continued]) -> Counts:
    """All of them as one."""
    whole = Counts()
    for part in parts:
        whole.merge(part.counts)
    return whole
