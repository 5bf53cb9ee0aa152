"""Ray's errors in a sentence: they tell a lot, and what a person needs stands now first, now last."""

from __future__ import annotations

import re

from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

MOST = 300  # characters
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_WHY_DEAD = ("The actor is dead because", "The actor died because")  # how the line begins that says so
_NO_MODULE = re.compile(r"No module named '(engine|paged_top)\b")


def in_a_sentence(error: BaseException) -> str:
    """What has happened."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    if isinstance(error, ActorUnavailableError):
        return "its process has ended, or cannot be reached"
    if isinstance(error, RayActorError):
        return _why_dead(lines)
    return _cut(" ".join(lines) or type(error).__name__)


def _why_dead(lines: list[str]) -> str:
    if any("creation task" in line for line in lines):  # the end of a traceback tells
        missing = any(_NO_MODULE.search(line) for line in lines)
        hint = ": paged-top must be installed on each node, for the Python that runs Ray there" if missing else ""
        return _cut(f"{lines[-1]}{hint}")
    told = next((line for line in lines if line.startswith(_WHY_DEAD)), lines[0] if lines else "the actor died")
    return _cut(told.split(". ")[0].rstrip("."))


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[: MOST - 3]}..."
