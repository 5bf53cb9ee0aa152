"""What happened to requests since the last record, as the next one will tell it."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import msgspec

from engine.protocol import Arrived, FinishReason, Joined, Left, Offered, Preempted, Receiving, Transferred
from engine.request import Request


class Events:
    """What happened to requests since the last record."""

    def __init__(self) -> None:
        self.arrived: list[Arrived] = []
        self.joined: list[Joined] = []
        self.preempted: list[Preempted] = []
        self.held: list[Left] = []
        self.left: list[Left] = []
        self.released: list[str] = []
        self.unreserved: list[str] = []
        self.offered: list[Offered] = []
        self.receiving: list[Receiving] = []
        self.transferred: list[Transferred] = []

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def not_moved(self, requests: Set[str]) -> None:
        """Those that joined had nothing copied or swapped in for them: the moves failed."""
        self.joined = [_unmoved(one) if one.request in requests else one for one in self.joined]


class EndedEarly(NamedTuple):
    """A request that ended outside its own step, and that its sender must be told of; `error` explains an `error`."""

    request: Request
    reason: FinishReason
    error: str | None = None


def _unmoved(joined: Joined) -> Joined:
    """What a request joined with when nothing could be copied for it or brought back."""
    found = joined.cached_tokens - joined.copied_tokens
    return msgspec.structs.replace(
        joined,
        cached_tokens=found,
        decoded_tokens=min(found, joined.decoded_tokens),
        copied_tokens=0,
        swapped_tokens=0,
        swapped_blocks=0,
    )
