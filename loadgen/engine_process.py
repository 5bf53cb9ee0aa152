"""An engine of loadgen's own: started as a process, waited for, and stopped whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

START_TIMEOUT = 600.0  # seconds; the first start converts the model
STOP_TIMEOUT = 15.0  # seconds from SIGTERM to SIGKILL
_POLL = 0.05  # seconds
_PR_SET_PDEATHSIG = 1
_TAIL = 40  # lines of its output to show when it fails
_SERVING = re.compile(r"\bserving .* at (https?://\S+)")


class EngineStartError(Exception):
    """The engine did not come up; the message ends with its own last lines."""


def engine_command(arguments: Sequence[str]) -> list[str]:
    """The command line of `paged-engine serve` on a free port, with more arguments after it."""
    script = Path(sys.executable).with_name("paged-engine")
    program = str(script) if script.exists() else shutil.which("paged-engine")
    if program is None:
        raise EngineStartError("paged-engine is not installed beside this Python; install the project, or give --url")
    # Nobody else uses it: when a run is over, nothing is in flight that somebody waits for.
    return [program, "serve", "--port", "0", "--drain-timeout", "0", *arguments]


def process_tree(root: int) -> list[int]:
    """A process and its descendants, by /proc; just the process itself where there is no /proc."""
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def peak_rss(pids: Sequence[int]) -> int | None:
    """The sum of each process's own peak of resident memory, in bytes; None where /proc does not tell."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1]) * 1024
    return total or None


def _die_with_loadgen() -> None:
    """In the engine, before it starts: be told to end when loadgen is gone, also when that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _exit_code(process: asyncio.subprocess.Process) -> int:
    """Wait for the process alone: its own `wait` also waits for children that hold its output open."""
    while process.returncode is None:
        await asyncio.sleep(_POLL)
    return process.returncode


class EngineProcess:
    """`async with EngineProcess(args, say) as engine: engine.url`. `say` gets a line now and then while it starts.

    The engine is in a session of its own, so that Ctrl-C reaches loadgen alone, which then stops it.
    """

    def __init__(self, arguments: Sequence[str], say: Callable[[str], None], command: Sequence[str] = ()) -> None:
        self._command = list(command) or engine_command(arguments)
        self._say = say
        self._lines: deque[str] = deque(maxlen=_TAIL)
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self.url = ""
        self.peak_rss_bytes: int | None = None

    async def __aenter__(self) -> EngineProcess:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        began = time.monotonic()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_loadgen,
            )
        except OSError as error:
            raise EngineStartError(f"{self._command[0]} cannot be started: {error}") from None
        self._reader = asyncio.create_task(self._read(self._process))
        exited = asyncio.create_task(_exit_code(self._process))
        ready = asyncio.create_task(self._until_healthy())
        self._say("starting an engine ...")
        try:
            while not (exited.done() or ready.done()):
                await asyncio.wait([exited, ready], timeout=2.0, return_when=asyncio.FIRST_COMPLETED)
                waited = time.monotonic() - began
                if waited > START_TIMEOUT:
                    raise EngineStartError(self._failure(f"was not ready after {waited:.0f} s"))
                if not (exited.done() or ready.done()):
                    self._say(f"starting an engine ... {waited:.0f} s {self._lines[-1] if self._lines else ''}")
            if exited.done():
                await asyncio.wait([self._reader], timeout=1.0)
                raise EngineStartError(self._failure(f"ended with exit code {exited.result()} before it was ready"))
            self.url = ready.result()
            self._say(f"engine at {self.url} after {time.monotonic() - began:.1f} s")
        finally:
            ready.cancel()
            exited.cancel()
            await asyncio.wait([ready, exited])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Keep its last lines, and never let its pipe fill."""
        assert process.stdout is not None
        rest = b""
        while received := await process.stdout.read(65536):
            *lines, rest = (rest + received).replace(b"\r", b"\n").split(b"\n")
            rest = rest[-8192:]
            for line in lines:
                text = line.decode("utf-8", "replace").rstrip()
                if text:
                    self._lines.append(text)
                match = _SERVING.search(text)
                if match and not self._address.done():
                    self._address.set_result(match[1])

    async def _until_healthy(self) -> str:
        url = await self._address
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while True:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                    async with http.get(f"{url}/health") as reply:
                        if reply.status == 200:
                            return url
                await asyncio.sleep(0.2)

    def _failure(self, what: str) -> str:
        return "\n".join([f"the engine {what}: {' '.join(self._command)}", *(f"  {line}" for line in self._lines)])

    async def ended(self) -> str:
        """Wait until the engine ends by itself; returns what is to be told about it."""
        assert self._process is not None
        code = await _exit_code(self._process)
        return self._failure(f"ended with exit code {code} while requests ran")

    def output_tail(self) -> list[str]:
        """The engine's last lines of output."""
        return list(self._lines)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def measure(self) -> None:
        """Note the peak memory so far; it cannot be read once the engine has gone."""
        if self._process is not None and self.alive:
            self.peak_rss_bytes = peak_rss(process_tree(self._process.pid)) or self.peak_rss_bytes

    async def stop(self) -> None:
        """Stop the engine: SIGTERM, then SIGKILL to its whole group. Safe to call twice."""
        process = self._process
        if process is None:
            return
        self._process = None
        try:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(_exit_code(process), STOP_TIMEOUT)
        finally:  # also when a second Ctrl-C cancels the wait: what is left of its group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=1.0)  # to the end of its output, so that the pipe is closed
            self._reader.cancel()
            await asyncio.wait([self._reader])
