"""The demo's load: `loadgen replay` as a child, its state told on the screen and its output in a log if it fails."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from tui import figures
from tui.child import Child, command

TRACE = Path("traces") / "chat500.jsonl"
STOP_TIMEOUT = 30.0  # it finishes its report first
INTERRUPTED = 130  # its exit code when it was stopped


class NoTrace(FileNotFoundError):
    """The demo's trace is not where it should be."""


def find_trace() -> Path:
    """The trace of this checkout, or of the current folder. Raises NoTrace."""
    places = [Path(__file__).resolve().parent.parent / TRACE, Path.cwd() / TRACE]
    for place in places:
        if place.is_file():
            return place
    raise NoTrace(f"{TRACE} is neither in {places[0].parent.parent} nor in {places[1].parent.parent}")


class Replay:
    """One run of `loadgen replay`."""

    def __init__(self, trace: Path, clock: Callable[[], float]) -> None:
        self.trace = trace
        self.log_path: Path | None = None  # of a log that is there
        self._log: TextIO | None = None
        self._clock = clock
        self._child: Child | None = None
        self._started = 0.0
        self._ended: float | None = None

    async def start(self, url: str, sessions: int | None, speed: float) -> None:
        """Replay against `url`."""
        descriptor, name = tempfile.mkstemp(prefix="paged-top-replay-", suffix=".log")
        self.log_path = Path(name)
        self._log = log = os.fdopen(descriptor, "w", encoding="utf-8")
        limit = ["--sessions", str(sessions)] if sessions else []
        self._started = self._clock()

        def write(line: str) -> None:
            log.write(line + "\n")
            log.flush()

        self._child = await Child.start(
            [
                *command("loadgen", "loadgen.cli"),
                "replay",
                str(self.trace),
                "--url",
                url,
                "--speed",
                f"{speed:g}",
                *limit,
            ],
            write,
        )

    @property
    def exit_code(self) -> int | None:
        return self._child.exit_code if self._child else None

    @property
    def line(self) -> str:
        """Its state in a few words."""
        if self._child is None:
            return "replay: waits for the engine"
        if self.exit_code is None:
            return f"replay: running {figures.clock(self._clock() - self._started)}"
        if self._ended is None:
            self._ended = self._clock()
        took = figures.clock(self._ended - self._started)
        if self.exit_code == 0:
            return f"replay: done in {took}"
        return f"replay: exit code {self.exit_code} after {took}"

    @property
    def failure(self) -> str:
        """Why it failed, and where its log is; empty while it runs, when it is done and when it was interrupted."""
        if self.exit_code in (None, 0, INTERRUPTED):
            return ""
        return f"the replay ended with exit code {self.exit_code}: {self.progress} (log: {self.log_path})"

    @property
    def report(self) -> list[str]:
        """What it has printed on its standard output: the report, once it has ended."""
        return list(self._child.output) if self._child else []

    @property
    def progress(self) -> str:
        """The last line it has said."""
        lines = self._child.lines if self._child else ()
        return next((line for line in reversed(lines) if line.strip()), "")

    async def stop(self) -> int | None:
        """Interrupt it, so that it reports what it has; its exit code, or None if it never ran.

        The log stays only if it failed.
        """
        code = await self._child.stop(signal.SIGINT, STOP_TIMEOUT) if self._child else None
        if self._log:
            self._log.close()
        if self.log_path and not self.failure:
            self.log_path.unlink(missing_ok=True)
            self.log_path = None
        return code
