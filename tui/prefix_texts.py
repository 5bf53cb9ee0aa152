"""How prefixes of a server read, for whoever draws them. What is looked up is visible: only that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class PrefixTexts(Protocol):
    @property
    def unknown(self) -> str:
        """Why there is no text, or none yet."""
        ...

    def of(self, tokens: Sequence[int]) -> str:
        """The text of token ids as far as it is known, as it came. Empty: it is not, and may be soon."""
        ...


@dataclass(frozen=True, slots=True)
class NoPrefixTexts:
    """Nothing is told, and `unknown` says why."""

    unknown: str

    def of(self, tokens: Sequence[int]) -> str:
        return ""


NOT_WATCHED = NoPrefixTexts("its token ids are not kept: they are somebody's text")
SWITCHED_OFF = NoPrefixTexts("texts and token ids are kept off this screen: --no-texts")
PAUSED = NoPrefixTexts("texts are of now: not read while paused")
PLAYED = NoPrefixTexts("a recording holds no text and no token ids")
