"""Where a command's output goes: reports to standard output, progress and errors to standard error."""

from __future__ import annotations

import sys

from rich.console import Console

WITHOUT_A_TERMINAL = 100  # columns


class _Report(Console):
    """Standard output. The library would end the program with exit code 1 when its reader has gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def stdout() -> Console:
    """Where reports go."""
    return _Report() if sys.stdout.isatty() else _Report(width=WITHOUT_A_TERMINAL)


def stderr() -> Console:
    """Where progress goes."""
    return Console(stderr=True)
