"""Where a command's output goes: reports to standard output, progress and errors to standard error."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console

WITHOUT_A_TERMINAL = 100  # columns


class _Report(Console):
    """Standard output. The library would end the program with exit code 1 when its reader has gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Progress(Console):
    """Standard error. What cannot be told there changes nothing of what is measured: from then on it is silent."""

    def on_broken_pipe(self) -> None:
        self.quiet = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)  # here it writes
        except OSError:
            self.quiet = True


def stdout() -> Console:
    """Where reports go."""
    return _Report() if sys.stdout.isatty() else _Report(width=WITHOUT_A_TERMINAL)


def stderr() -> Console:
    """Where progress goes."""
    return _Progress(stderr=True)
