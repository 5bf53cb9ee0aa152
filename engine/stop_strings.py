"""Stop strings on streamed text: found across chunks, and no part of one is ever let out.

The match that is complete first wins (of two that end together, the longer), so that the outcome does not
depend on how the text was cut into chunks. Text that could be the start of a match is held back: at most
`max(len) - 1` characters.
"""

from __future__ import annotations

from typing import NamedTuple


class Checked(NamedTuple):
    """Text that may go out now, and the stop string that ended it, if one did."""

    text: str
    matched: str | None


class StopStrings:
    """One text's search. `include` leaves the matched string in the text."""

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string cannot be empty")
        self._stops = stops
        self._include = include
        self._held = ""
        self._ignored = 0  # characters of `_held` that came before stops counted

    def push(self, text: str, *, armed: bool = True) -> Checked:
        """Take the next text. A match counts if its last character came while `armed`."""
        if not self._stops:
            return Checked(text, None)
        known = self._held + text
        if armed:
            if match := self._first_match(known):
                start, end = match
                self._held = ""
                return Checked(known[: end if self._include else start], known[start:end])
        else:
            self._ignored = len(known)
        out = len(known) - self._possible_start(known)
        self._held = known[out:]
        self._ignored = max(0, self._ignored - out)
        return Checked(known[:out], None)

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, known: str) -> tuple[int, int] | None:
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = known.find(stop, max(0, self._ignored - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < (best[1], best[0])):
                best = (start, start + len(stop))
        return best

    def _possible_start(self, known: str) -> int:
        """Length of the longest end of `known` that begins some stop string."""
        longest = min(len(known), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            tail = known[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0
