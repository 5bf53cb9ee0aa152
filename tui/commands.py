"""What a key or a click in a panel asks for beyond moving the focus. Panels are pure: the app does these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tui.focus import Focus


@dataclass(frozen=True, slots=True)
class Change:
    """Send a change of control: field names of `Control` to values."""

    changes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Undo:
    """Take back the last change that this screen made."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a live request."""

    request: str


@dataclass(frozen=True, slots=True)
class Seek:
    """Show the state after record `seq`; None: the newest."""

    seq: int | None


@dataclass(frozen=True, slots=True)
class Replay:
    """Start or stop the load, or set how many times as fast as recorded it goes."""

    action: Literal["start", "stop", "speed"]
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for a line of text; the answer goes to the panel's `answer(frame, what, text)`."""

    what: str
    label: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Say:
    """Tell something on the last line."""

    text: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Open:
    """Show one server of a fleet alone, by its name."""

    server: str


Command = Change | Undo | Cancel | Seek | Replay | Ask | Say | Open
Reaction = Focus | Command | None  # None: the key or the place means nothing here


@dataclass(frozen=True, slots=True)
class Key:
    """For the help: `keys` as a person reads them ("enter", "up down"), and what they do here."""

    keys: str
    does: str
