"""The load: `loadgen replay` as a child, its state told on the screen and its output in a log if it fails."""

from __future__ import annotations

import asyncio
import io
import re
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tui import figures
from tui.child import Child, command

TRACE = Path("traces") / "chat500.jsonl"
STOP_TIMEOUT = 30.0  # it finishes its report first
INTERRUPTED = 130  # its exit code when it was stopped
SLOWEST, FASTEST = 0.25, 64.0  # speeds that the screen asks for

_SESSIONS = re.compile(r": \d+ s, sessions (\d+)/(\d+), ")  # in a line of its progress
_SPEED = re.compile(r"steer: speed ([\d.e+-]+)$")  # what it says when it has taken a speed

State = Literal["waits", "running", "stopping", "done", "stopped", "failed"]


class NoTrace(FileNotFoundError):
    """The demo's trace is not where it should be."""


def find_trace() -> Path:
    """The trace of this checkout, or of the current folder. Raises NoTrace."""
    places = [Path(__file__).resolve().parent.parent / TRACE, Path.cwd() / TRACE]
    for place in places:
        if place.is_file():
            return place
    raise NoTrace(f"{TRACE} is neither in {places[0].parent.parent} nor in {places[1].parent.parent}")


@dataclass(frozen=True, slots=True)
class Load:
    """What is known of a replay. `speed` is what it goes by, `asked` what it was told and has not confirmed.

    `took` is how long it has run, as a clock; `done` of `sessions` are as its last line of progress told them.
    """

    state: State
    trace: str
    speed: float
    asked: float | None = None
    took: str = ""
    done: int | None = None
    sessions: int | None = None
    code: int | None = None  # where it failed

    @property
    def runs(self) -> bool:
        return self.state in ("running", "stopping")

    @property
    def line(self) -> str:
        """All of it in a line; `of` reads it."""
        match self.state:
            case "waits":
                state = "waits"
            case "running" | "stopping":
                state = f"{self.state} {self.took}"
            case "done":
                state = f"done in {self.took}"
            case "stopped":
                state = f"stopped after {self.took}"
            case "failed":
                state = f"exit code {self.code} after {self.took}"
        asked = f", asked for {self.asked:g}x" if self.asked is not None else ""
        progress = f"{self.done}/{self.sessions} of " if self.sessions is not None else ""
        return f"replay: {state}, {self.speed:g}x{asked}, {progress}{self.trace}"

    @classmethod
    def of(cls, line: str) -> Load | None:
        """What a line told; None if it is no such line."""
        found = _LINE.fullmatch(line)
        if found is None:
            return None
        told = found.groupdict()
        state: State = next((state for state in _STATES if told[state]), "failed")
        whole = {name: int(told[name]) for name in ("done_sessions", "sessions", "code") if told[name]}
        return cls(
            state,
            told["trace"],
            float(told["speed"]),
            float(told["asked"]) if told["asked"] else None,
            next((told[took] for took in ("took", "took_done", "took_stopped", "took_failed") if told[took]), ""),
            whole.get("done_sessions"),
            whole.get("sessions"),
            whole.get("code"),
        )


_STATES: tuple[State, ...] = ("waits", "running", "stopping", "done", "stopped")
_LINE = re.compile(
    r"replay: (?:(?P<waits>waits)|(?:(?P<running>running)|(?P<stopping>stopping)) (?P<took>[\d:]+)"
    r"|(?P<done>done) in (?P<took_done>[\d:]+)|(?P<stopped>stopped) after (?P<took_stopped>[\d:]+)"
    r"|exit code (?P<code>-?\d+) after (?P<took_failed>[\d:]+)), (?P<speed>[\d.e+-]+)x"
    r"(?:, asked for (?P<asked>[\d.e+-]+)x)?, (?:(?P<done_sessions>\d+)/(?P<sessions>\d+) of )?(?P<trace>.*)"
)


class Replay:
    """Runs of `loadgen replay`, one at a time. `speed` is that of the one that runs, or of the next."""

    def __init__(self, trace: Path, clock: Callable[[], float], speed: float = 1.0) -> None:
        self.trace = trace
        self.log_path: Path | None = None  # of a log that is there
        self.speed = speed
        self._asked: float | None = None
        self._progress: tuple[int, int] | None = None  # sessions done, of how many
        self._log: io.FileIO | None = None
        self._log_problem = ""  # why it does not tell all
        self._clock = clock
        self._child: Child | None = None
        self._changing = asyncio.Lock()  # one start or stop at a time
        self._stopping = False
        self._started = 0.0
        self._ended: float | None = None

    async def start(
        self, url: str, sessions: int | None, admin_key: str | None = None, api_key: str | None = None
    ) -> None:
        """Replay against `url`, unless it does already, at the speed that was asked for last. Raises OSError."""
        async with self._changing:
            if self.running:
                return
            self._drop_log()
            self.speed, self._asked = self._asked or self.speed, None
            self._progress, self._ended, self._child = None, None, None
            self._open_log()
            limit = ["--sessions", str(sessions)] if sessions else []
            options = ["--url", url, "--speed", f"{self.speed:g}", "--steer", "--no-probe", *limit]
            self._started = self._clock()
            program = [*command("loadgen", "loadgen.cli"), "replay", str(self.trace), *options]
            keys = {"LOADGEN_ADMIN_KEY": admin_key, "LOADGEN_API_KEY": api_key}
            given = {name: key for name, key in keys.items() if key is not None}
            self._child = await Child.start(program, self._hear, steered=True, environment=given)

    def set_speed(self, speed: float) -> None:
        """Let it go by another speed from now on, or the next one if none runs."""
        if self._child is not None and self.running:
            self._asked = speed
            self._child.write(f"speed {speed:g}\n")
        else:
            self.speed, self._asked = speed, None

    def _hear(self, line: str) -> None:
        self._write_log(line)
        if found := _SESSIONS.search(line):
            self._progress = int(found[1]), int(found[2])
        elif found := _SPEED.match(line):
            self.speed = float(found[1])
            self._asked = self._asked if self._asked is not None and f"{self._asked:g}" != found[1] else None

    @property
    def running(self) -> bool:
        return self._child is not None and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        return self._child.exit_code if self._child else None

    @property
    def load(self) -> Load:
        """All that is known of it."""
        done, sessions = self._progress or (None, None)
        state: State = "waits"
        took, code = "", self.exit_code
        if self._child is not None:
            if code is not None and self._ended is None:
                self._ended = self._clock()
            took = figures.clock((self._clock() if self._ended is None else self._ended) - self._started)
            state = "stopping" if self._stopping else "running"
        if code is not None:
            state = "done" if code == 0 else "stopped" if code == INTERRUPTED else "failed"
        failed = code if state == "failed" else None
        return Load(state, self.trace.stem, self.speed, self._asked, took, done, sessions, failed)

    @property
    def line(self) -> str:
        """Its state in a few words."""
        return self.load.line

    @property
    def failure(self) -> str:
        """Why it failed, and where its log is; empty while it runs, when it is done and when it was interrupted."""
        if self.exit_code in (None, 0, INTERRUPTED):
            return ""
        log = f"log: {self.log_path}" if self.log_path else "no log"
        why = f"; it ends early: {self._log_problem}" if self._log_problem else ""
        return f"the replay ended with exit code {self.exit_code}: {self.progress} ({log}{why})"

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
        async with self._changing:
            self._stopping = True
            try:
                code = await self._child.stop(signal.SIGINT, STOP_TIMEOUT) if self._child else None
            finally:
                self._stopping = False
            self._drop_log()
            return code

    def _open_log(self) -> None:
        """A log for a run; where there can be none, it goes on without."""
        self._log, self.log_path, self._log_problem = None, None, ""
        try:
            descriptor, name = tempfile.mkstemp(prefix="paged-top-replay-", suffix=".log")
        except OSError as error:
            self._log_problem = error.strerror or str(error)
            return
        self.log_path = Path(name)
        self._log = io.FileIO(descriptor, "wb")

    def _write_log(self, line: str) -> None:
        """The replay goes on where its log cannot."""
        if self._log is None or self._log.closed:
            return
        try:
            self._log.write(line.encode("utf-8", "replace") + b"\n")
        except OSError as error:
            self._log_problem = error.strerror or str(error)
            self._log.close()

    def _drop_log(self) -> None:
        """Close the log of the last run, and keep it only if that failed."""
        if self._log:
            self._log.close()
        if self.log_path and not self.failure:
            self.log_path.unlink(missing_ok=True)
            self.log_path = None
