"""The operator's hand on a cluster: changes of its control, and their undoing. --readonly is asked here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.cluster.protocol import ClusterControl
from tui.cluster.client import Cluster
from tui.cluster.controls import named, reads
from tui.cluster.states import ClusterStates
from tui.engine_api import Refused, Unreachable
from tui.operator import KEPT_CHANGES, Tell


@dataclass(frozen=True, slots=True)
class Made:
    """A change that the cluster has accepted: what the fields were, and what they are now."""

    before: dict[str, Any]
    after: dict[str, Any]


class ClusterOperator:
    """Sends what keys ask for, and tells what came of it. `made` are the changes of this screen, oldest first."""

    def __init__(self, cluster: Cluster | None, states: ClusterStates, readonly: bool, tell: Tell) -> None:
        """`cluster` None: the states are a recording's."""
        self.readonly = readonly
        self.ended = False  # the cluster was let go of: what still waits is not sent
        self.made: list[Made] = []
        self._cluster = cluster
        self._states = states
        self._tell = tell
        self._turn = asyncio.Lock()  # one change at a time
        self._asked: dict[str, Any] = {}  # that is on its way
        self._accepted: tuple[int, ClusterControl] | None = None  # the last answer, and the states heard until then

    @property
    def control(self) -> ClusterControl | None:
        """What is in force, as far as it is known, with what was just asked for: the next change begins with it."""
        control = self._in_force
        return msgspec.structs.replace(control, **self._asked) if control is not None and self._asked else control

    @property
    def _in_force(self) -> ClusterControl | None:
        """The answer to a change comes before the state that tells it."""
        heard, accepted = self._accepted or (0, None)
        if accepted is not None and heard >= self._states.heard:
            return accepted
        return self._states.state.control if self._states.state is not None else None

    def able(self) -> bool:
        """Whether anything may be sent; tells why not, while there is a screen to tell it on."""
        if self.ended:
            return False
        if self._cluster is None:
            self._tell("a recording cannot be changed", True)
        elif self.readonly:
            self._tell("readonly: nothing is sent", True)
        elif self.control is None:
            self._tell("there is no cluster to switch yet", True)
        else:
            return True
        return False

    async def change(self, changes: dict[str, Any]) -> None:
        """Send a change and say what the cluster made of it."""
        if not self.able():
            return
        self._asked |= changes
        async with self._turn:
            if not self.ended:
                await self._change(changes)

    async def undo(self) -> None:
        """Take the last change of this screen back."""
        async with self._turn:
            if not self.able():
                return
            if self.made:
                self._asked |= self.made[-1].before
                await self._change(self.made[-1].before, undoes=self.made[-1])
            else:
                self._tell("nothing was changed from this screen", True)

    async def _change(self, changes: dict[str, Any], undoes: Made | None = None) -> None:
        """`undoes`: the change that it takes back."""
        control = self._in_force
        assert control is not None
        assert self._cluster is not None
        before = {field: getattr(control, field) for field in changes}
        try:
            accepted = await self._cluster.change_cluster(changes)
        except (Refused, Unreachable) as error:
            self._asked.clear()
            what = ", ".join(named(field) for field in changes)
            self._tell(f"{what} {'were' if len(changes) > 1 else 'was'} not changed: {error}", True)
            return
        self._asked = {field: value for field, value in self._asked.items() if changes.get(field) != value}
        self._accepted = self._states.heard, accepted
        now = {field: getattr(accepted, field) for field in changes}
        kept = now != changes
        if undoes is not None and not kept:
            self.made.remove(undoes)
        elif now != before:
            self.made = [*self.made, Made(before, now)][-KEPT_CHANGES:]
        words = ", ".join(f"{named(field)}: {reads(field, value)}" for field, value in now.items())
        self._tell(f"{'the cluster kept ' if kept else ''}{words}", kept)
