"""The operator's hand on the engine: changes of control, their undoing, cancelled requests, the replay.

Everything that reaches the engine from the screen goes through here, so that --readonly is asked in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from engine.protocol import Control
from tui.controls import named, reads
from tui.engine_api import Accepted, Refused, Unreachable
from tui.session import Session

KEPT_CHANGES = 100

Tell = Callable[[str, bool], None]  # words, and whether they are bad news


class Hand(Protocol):
    """What keys need to change what is shown, an engine or a cluster."""

    def able(self) -> bool:
        """Whether anything may be sent; tells why not."""
        ...

    async def change(self, changes: dict[str, Any]) -> None: ...

    async def undo(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Made:
    """A change that the engine has accepted: what the fields were, and what they are now, from `step` on."""

    before: dict[str, Any]
    after: dict[str, Any]
    step: int


class Operator:
    """Sends what keys ask for, and tells what came of it. `made` are the changes of this screen, oldest first."""

    def __init__(self, session: Session, readonly: bool, tell: Tell) -> None:
        self.readonly = readonly
        self.ended = False  # the engine was let go of: what still waits is not sent
        self.made: list[Made] = []
        self.tried: tuple[Made, ...] = ()  # and taken back: not to be suggested again
        self._session = session
        self._tell = tell
        self._refused: dict[str, Any] = {}  # the last value of a control that the engine would not take
        self._turn = asyncio.Lock()  # one change at a time: each begins with what the one before it led to
        self._accepted: tuple[float, Accepted] | None = None  # the last answer, and when its engine was started

    @property
    def control(self) -> Control | None:
        """The control in force, as far as it is known: the answer to a change comes before its record."""
        fold = self._session.feed.fold if self._session.feed else None
        if fold is None:
            return None
        started, accepted = self._accepted or (None, None)
        if accepted is not None and started == fold.engine.started and accepted.step > fold.seq:
            return accepted.control
        return fold.control

    def able(self) -> bool:
        """Whether anything may be sent; tells why not, while there is a screen to tell it on."""
        if self.ended:
            return False
        if self.readonly:
            self._tell("readonly: nothing is sent", True)
        elif self._session.player is not None:
            self._tell("a recording cannot be changed", True)
        elif self.control is None:
            self._tell("there is no engine to switch yet", True)
        else:
            return True
        return False

    def next_value(self, field: str, after: Callable[[Any], Any]) -> Any:
        """The choice after what the engine has now, or after what it has just refused."""
        return after(self._refused.pop(field, getattr(self.control, field)))

    async def change(self, changes: dict[str, Any]) -> None:
        """Send a change and say what the engine made of it."""
        async with self._turn:
            if self.able():
                await self._change(changes)

    async def _change(self, changes: dict[str, Any], undoes: Made | None = None) -> None:
        """`undoes`: the change that it takes back."""
        fold = self._session.feed.fold if self._session.feed else None
        assert fold is not None
        before = {field: getattr(self.control, field) for field in changes}
        what = ", ".join(named(field) for field in changes)
        try:
            accepted = await self._session.change(changes)
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused):
                self._refused |= changes
            self._tell(f"{what} {'were' if len(changes) > 1 else 'was'} not changed: {error}", True)
            return
        self._accepted = fold.engine.started, accepted
        now = msgspec.structs.asdict(accepted.control)
        words = ", ".join(f"{named(field)} is {reads(field, now[field])}" for field in changes)
        kept = any(now[field] != value for field, value in changes.items())
        if undoes is not None and not kept:
            self.made.remove(undoes)
            self.tried = (*self.tried, undoes)[-KEPT_CHANGES:]
        elif any(now[field] != value for field, value in before.items()):
            after = {field: now[field] for field in changes}
            self.made = [*self.made, Made(before, after, accepted.step)][-KEPT_CHANGES:]
        self._tell(f"{'the engine kept: ' if kept else ''}{words} from step {accepted.step:,}", kept)

    async def undo(self) -> None:
        """Take the last change of this screen back."""
        async with self._turn:
            if not self.able():
                return
            if self.made:
                await self._change(self.made[-1].before, undoes=self.made[-1])
            else:
                self._tell("nothing was changed from this screen", True)

    async def cancel(self, request: str) -> None:
        """End a request."""
        if self.able() and self._session.feed is not None:
            await self._told(self._session.feed.engine.cancel(request), f"cancelled {request}")

    async def _told(self, work: Awaitable[Any], done: str) -> None:
        try:
            await work
        except (Refused, Unreachable) as error:
            self._tell(str(error), True)
        else:
            self._tell(done, False)
