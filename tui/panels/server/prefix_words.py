"""How prefixes read on a screen: the text that a server made of their token ids, or else the ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from unicodedata import bidirectional

from tui.look import Look
from tui.panels.line import clean
from tui.prefix_texts import PrefixTexts

BRIEF, WHOLE = 32, 128  # token ids: of a row, and of the inspector
_ESCAPE = re.compile(
    r"(\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"
)
_BLANK = re.compile(r"\s+")
_LEFTWARDS = ("R", "AL", "AN")  # signs after which a terminal may put the figures of a row before its text


@lru_cache(maxsize=256)  # each is drawn several times a second
def readable(text: str) -> str:
    """In one line, without escape sequences and what else would move a terminal's cursor or turn its text around.

    Empty where hardly any of it can be shown.
    """
    plain = _BLANK.sub(" ", _ESCAPE.sub("", text)).strip()
    shown = clean("".join("\0" if bidirectional(sign) in _LEFTWARDS else sign for sign in plain))
    return shown if 2 * (shown.count("?") - text.count("?")) < len(shown) else ""


def label(tokens: Sequence[int], whole: bool, texts: PrefixTexts, look: Look, later: bool = False) -> str:
    """The beginning of a prefix: its text in quotes, its token ids, or nothing where neither is known.

    `whole`: there are no further tokens; `later`: there are some before them.
    """
    if not tokens:
        return ""
    text = readable(texts.of(tokens))
    before, after = look.glyphs.more if later else "", "" if whole else look.glyphs.more
    return f'"{before}{text}{after}"' if text else ids(tokens, whole, look, later)


def ids(tokens: Sequence[int], whole: bool, look: Look, later: bool = False) -> str:
    shown = " ".join(map(str, tokens))
    return f"tokens {f'{look.glyphs.more} ' if later else ''}{shown}{'' if whole else f' {look.glyphs.more}'}"
