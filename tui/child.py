"""A program of this project as a child: its output is read line by line, and it never outlives its parent."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_KEPT_LINES = 400
STOP_TIMEOUT = 10.0


def command(script: str, module: str) -> list[str]:
    """How to start a console command of this installation: its script, or its module by this interpreter."""
    beside = Path(sys.executable).with_name(script)
    if beside.exists():
        return [str(beside)]
    return [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())"]


def die_with_parent() -> None:
    """In the child: be told to end when the parent is gone, however that came about."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """One running child. `lines` are its latest lines of output, both streams together; `output` those of the first."""

    def __init__(self, process: asyncio.subprocess.Process, on_line: Callable[[str], None] | None = None) -> None:
        self.process = process
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.output: deque[str] = deque(maxlen=_KEPT_LINES)
        self._on_line = on_line
        assert process.stdout is not None
        assert process.stderr is not None
        self._reader = asyncio.gather(self._read(process.stdout, True), self._read(process.stderr, False))

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        on_line: Callable[[str], None] | None = None,
        steered: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a child in a session of its own, so that the terminal's Ctrl-C reaches the parent alone.

        One that is `steered` reads what is written to it; to others the input has ended. `environment` has variables
        besides this program's own: what is to be in nobody's list of processes.
        """
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE if steered else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        return cls(process, on_line)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self.process.returncode

    def write(self, text: str) -> None:
        """Put text on the input of one that is steered; one that has ended does not read it."""
        if self.process.stdin is not None and self.process.returncode is None:
            self.process.stdin.write(text.encode())

    async def wait(self) -> int:
        """Its exit code, when it has ended and all it said was read."""
        code = await self.process.wait()
        await asyncio.shield(self._reader)
        return code

    async def stop(self, sign: signal.Signals = signal.SIGTERM, timeout: float = STOP_TIMEOUT) -> int:
        """Ask it to end, and make it and its own children if they do not; returns its exit code."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(sign)
        try:
            return await asyncio.wait_for(self.wait(), timeout)
        except TimeoutError:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            return await self.wait()

    async def _read(self, stream: asyncio.StreamReader, is_output: bool) -> None:
        """Lines end with a newline or, as progress bars have it, a carriage return."""
        rest = ""
        while chunk := await stream.read(65536):
            *lines, rest = (rest + chunk.decode("utf-8", "replace").replace("\r", "\n")).split("\n")
            for line in lines:
                self._keep(line, is_output)
        if rest:
            self._keep(rest, is_output)

    def _keep(self, line: str, is_output: bool) -> None:
        self.lines.append(line)
        if is_output:
            self.output.append(line)
        if self._on_line:
            self._on_line(line)
