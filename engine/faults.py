"""Faults that are made to happen, for tests of what the engine does about them (`--fault`). Off unless asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.plan import Runner

if TYPE_CHECKING:
    from engine.core import EngineCore


class Faults:
    """Those of one engine. Raises ValueError, with what is allowed, for a fault it does not know."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = tuple(wanted)

    def wrap(self, runner: Runner) -> Runner:
        """The runner, with the faults of the device in it."""
        return runner

    def before_step(self, core: EngineCore) -> None:
        """Make those happen that lie outside the runner."""
