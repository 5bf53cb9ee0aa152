"""What the terminal can show: colours and glyphs, from its environment alone; and whether it is still there."""

from __future__ import annotations

import errno
import termios
from collections.abc import Mapping
from typing import TextIO

from tui.look import ASCII, UNICODE, Look
from tui.themes import DARK, MONO, SIXTEEN, THEMES, Theme

AUTO = "auto"
THEME_CHOICES = (AUTO, *THEMES)
_SIXTEEN_COLOURS = ("xterm", "linux", "screen", "ansi", "rxvt", "tmux")
_NO_COLOURS = ("", "dumb", "unknown", "vt100", "vt102", "vt220")


def look(environment: Mapping[str, str], theme: str, ascii_only: bool | None, encoding: str) -> Look:
    """The look that was asked for, or that suits the terminal. NO_COLOR always holds.

    `ascii_only` None: where the terminal cannot show more (not UTF-8, or the Linux console's font).
    """
    term = environment.get("TERM", "")
    if ascii_only is None:
        ascii_only = "utf" not in encoding.lower() or term == "linux"
    return Look(ASCII if ascii_only else UNICODE, _theme(environment, theme, term))


def is_gone(stream: TextIO | None) -> bool:
    """Whether the stream was a terminal's, and that has hung up."""
    try:
        if stream is not None:
            termios.tcgetattr(stream)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return False


def _theme(environment: Mapping[str, str], theme: str, term: str) -> Theme:
    if environment.get("NO_COLOR"):
        return MONO
    if theme != AUTO:
        return THEMES[theme]
    if environment.get("COLORTERM", "") in ("truecolor", "24bit") or "256" in term or "direct" in term:
        return DARK
    if term in _NO_COLOURS:
        return MONO
    return SIXTEEN if term in _SIXTEEN_COLOURS else DARK
