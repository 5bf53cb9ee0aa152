"""Requests that an engine goes on with after another one: their prompts were counted and looked up there already. Pure.

No record names them. But a request draws its first token from the last one of its prompt, and one that goes on draws
its first here from a later one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from engine.protocol import Record, RequestState


@dataclass(slots=True)
class _Seen:
    """A request that has drawn no token here yet."""

    prompt_tokens: int
    shared_tokens: int = 0
    looked_up_tokens: int = 0
    found_tokens: int = 0


@dataclass(slots=True)
class Counts:
    """Of the requests that go on here."""

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
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def begin(self, requests: Iterable[RequestState]) -> None:
        """Those that wait for their first token; what they have found was told before."""
        self._seen = {one.request: _Seen(one.prompt_tokens) for one in requests if one.num_tokens == one.prompt_tokens}

    def add(self, record: Record) -> None:
        """Take a step."""
        seen = self._seen
        for arrived in record.arrived:
            seen[arrived.request] = _Seen(arrived.prompt_tokens)
        for joined in record.joined:
            if not joined.resumed and (one := seen.get(joined.request)) is not None:
                one.shared_tokens = min(joined.shared_tokens, one.prompt_tokens)
                one.looked_up_tokens, one.found_tokens = joined.looked_up_tokens, joined.cached_tokens
        if seen:
            for row in record.rows:
                first = seen.pop(row.request, None) if row.sampled else None
                if first is not None and row.context > first.prompt_tokens:
                    self._count(first)
        for left in record.left:
            seen.pop(left.request, None)

    def _count(self, one: _Seen) -> None:
        counts = self.counts
        counts.requests += 1
        counts.prompt_tokens += one.prompt_tokens - one.shared_tokens
        counts.looked_up_tokens += one.looked_up_tokens
        counts.found_tokens += one.found_tokens


def merged_counts(parts: Iterable[Continued]) -> Counts:
    """All of them as one."""
    whole = Counts()
    for part in parts:
        whole.merge(part.counts)
    return whole
