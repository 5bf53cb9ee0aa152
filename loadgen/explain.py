"""What is wrong with a line of a file that cannot be read, in words."""

from __future__ import annotations

import re

import msgspec

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)  # what reading a line may raise
LONGEST = 400  # letters of what is told of a line, which may quote a cell of any length
_PATH = re.compile(r"^(?P<what>.*?) - at `\$\.?(?P<path>.*)`$", re.DOTALL)


def explain(error: Exception) -> str:
    """One of `UNREADABLE`: the field first, if one is named."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason} at its byte {error.start}"
    if isinstance(error, RecursionError):
        return "not JSON that can be read: nested too deep"
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {text}"
    if match := _PATH.match(text):
        text = f"{match['path']}: {match['what']}" if match["path"] else match["what"]
    text = text.replace("`", "")
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
