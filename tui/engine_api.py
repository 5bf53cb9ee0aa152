"""What the screen needs of an engine, whatever stands behind it, and what can go wrong. No HTTP: it costs a start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from engine.protocol import BlockText, Control, Gap, LiveLoad, Record, RequestText, Snapshot


class Unreachable(Exception):
    """Nothing answers, or it cannot serve yet: worth trying again."""


class Down(Unreachable):
    """Its server answers that the engine cannot serve now, in its own words."""


class NotAnEngine(Exception):
    """Something answers, and it is not a paged-engine that this program knows."""


class Locked(NotAnEngine):
    """An engine answers, but not to this program's key, or not without one."""


class ACluster(NotAnEngine):
    """A cluster of engines answers: each of them has an address of its own below this one."""


class Unreadable(NotAnEngine):
    """A cluster answers, and this program cannot read its state: another version, or a fault."""


class Missing(Exception):
    """What was asked for is not there, or not any more; the message says what."""


class Refused(Exception):
    """The engine did not take a change of control, or did not cancel; the message is its own."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The whole control as it now is, and the step from which it holds."""

    control: Control
    step: int


class Engine(Protocol):
    """What the feed and the keys need of an engine."""

    async def snapshot(self) -> Snapshot: ...

    def steps(self, first: int) -> AsyncIterator[Record | Gap]: ...

    async def change(self, changes: dict[str, Any]) -> Accepted: ...

    async def request_text(self, request: str, first: int) -> RequestText: ...

    async def block_text(self, block: int) -> BlockText: ...

    async def cancel(self, request: str) -> tuple[str, ...]: ...

    async def loads(self) -> tuple[LiveLoad, ...]: ...

    async def failure(self) -> str:
        """Why the engine failed the last time that it did; empty where that is not told. Raises nothing."""
        ...

    async def unready(self) -> str:
        """Why it takes no requests now; empty where it does, or that is not told. Raises nothing."""
        ...

    async def close(self) -> None: ...
