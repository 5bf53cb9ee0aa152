"""Answers' ids are made of their requests' ids, which clients may send twice: the engine knows no two requests by one
name."""

from __future__ import annotations

import itertools
import re

# A choice is named after its answer and its place in it.
_LIKE_A_CHOICE = re.compile(r"[^-]+-.*-\d{1,4}")


class AnswerNames:
    """The newest `remembered` ids: as many as there are answers at a time, those held in a static batch included."""

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._given: dict[str, None] = {}  # the oldest first
        self._numbers = itertools.count(1)

    def unlike(self, wanted: str) -> str:
        """`wanted`, with a number behind it if an answer has that id or a choice may have it."""
        name = wanted
        while name in self._given or _LIKE_A_CHOICE.fullmatch(name):
            name = f"{wanted}.{next(self._numbers)}"
        self._given[name] = None
        if len(self._given) > self._remembered:
            del self._given[next(iter(self._given))]
        return name
