"""What every time travel can do, whatever is counted there: go to a number that a person typed, and play faster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from tui.operator import Tell
from tui.pacing import MAX_SPEED, MIN_SPEED
from tui.played import Played
from tui.view import Unit

PlayerT = TypeVar("PlayerT", bound=Played[Any])


class TimeTravel(ABC, Generic[PlayerT]):
    """`seq` None: the newest. Otherwise the number of what is shown: of a `UNIT`, as a person knows it."""

    UNIT: ClassVar[Unit]
    NO_SPEED: ClassVar[str] = "only a recording has a speed"

    def __init__(self, tell: Tell, player: PlayerT | None) -> None:
        self.seq: int | None = None
        self._tell = tell
        self._player = player

    @abstractmethod
    def to(self, seq: int, exactly: bool = False) -> None:
        """What is kept nearest to `seq`; of a recording also what was not played yet.

        `exactly`: tell where that is another one.
        """

    def goto(self, text: str) -> None:
        """To the number that a person has typed."""
        digits = text.strip().replace(",", "")
        if digits.isascii() and digits.isdecimal() and len(digits) < 19:
            self.to(int(digits), exactly=True)
        else:
            self._tell(f"a {self.UNIT} is a whole number, not {text[:40]!r}", True)

    def faster(self, times: float) -> None:
        """Play a recording faster or slower."""
        if self._player is None:
            self._tell(self.NO_SPEED, True)
            return
        self._player.speed = min(MAX_SPEED, max(MIN_SPEED, self._player.speed * times))
        self._tell(f"{self._player.speed:g} times as fast as recorded", False)
