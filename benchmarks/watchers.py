"""Those who watch an engine while it is measured: paged-top in terminals of their own, and readers of the stream."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from loadgen.engine_process import process_tree
from tui.child import command

COLUMNS, LINES = 160, 48
START_TIMEOUT = 60.0  # seconds until a screen shows that it follows the engine
STOP_TIMEOUT = 10.0
READERS = ("reader", "stopped")  # one that reads all of the step stream, and one that never reads on
_FOLLOWS = b"live"  # on the screen once it does


class WatcherError(Exception):
    """A watcher did not start or did not stay; the message is for a person."""


def watchers(text: str) -> tuple[str, ...]:
    """Of an option such as `0,1,10,reader`: numbers of screens, and kinds of readers. Raises ValueError."""
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in found:
        if word not in READERS and not (word.isascii() and word.isdecimal() and int(word) <= 100):
            raise ValueError(f"must be numbers from 0 to 100, {' or '.join(READERS)}, with commas; got {word!r}")
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """What processes have used of the processors so far, all threads; those that are gone count as nothing."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            ticks += _ticks(Path(f"/proc/{pid}/stat").read_text())
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(stat: str) -> int:
    """User and system time of a line of /proc/PID/stat, whose second field may hold anything in parentheses."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class Screen:
    """One paged-top in a pseudo-terminal, whose output is read and dropped, as a terminal would draw it."""

    def __init__(self, url: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PAGED_TOP_")}
        self._process = subprocess.Popen(
            [*command("paged-top", "tui.cli"), "--url", url, "--readonly"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**clean, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(slave)
        self._last = b""
        self._follows = asyncio.Event()
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._drain)

    @property
    def pids(self) -> list[int]:
        return process_tree(self._process.pid)

    def check(self) -> None:
        """Raises WatcherError if it has ended."""
        if self._process.poll() is not None:
            said = self._last.decode("utf-8", "replace")[-400:]
            raise WatcherError(f"paged-top ended with exit code {self._process.returncode}: {said!r}")

    async def until_it_follows(self) -> None:
        """Raises WatcherError if it does not get there."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._follows.wait(), START_TIMEOUT)
        self.check()
        if not self._follows.is_set():
            raise WatcherError(f"paged-top did not follow the engine within {START_TIMEOUT:.0f} s")

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        self._process.terminate()
        os.close(self._master)
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _drain(self) -> None:
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # it has closed its end
            asyncio.get_running_loop().remove_reader(self._master)
            self._follows.set()
            return
        if not self._follows.is_set() and _FOLLOWS in self._last[-len(_FOLLOWS) :] + data:
            self._follows.set()
        self._last = (self._last + data)[-4096:]


@asynccontextmanager
async def attached(http: aiohttp.ClientSession, url: str, kind: str) -> AsyncIterator[list[Screen]]:
    """While watchers of a kind (see `watchers`) follow the engine. Gives the screens."""
    async with AsyncExitStack() as stack:
        screens: list[Screen] = []
        if kind in READERS:
            response = await stack.enter_async_context(http.get(f"{url}/engine/steps", params={"from": 1}))
            stack.callback(response.close)
            if kind == "reader":
                reading = asyncio.create_task(_drop(response))
                stack.callback(reading.cancel)
        else:
            for _ in range(int(kind)):
                screens.append(Screen(url))
                stack.callback(screens[-1].stop)
        for screen in screens:
            await screen.until_it_follows()
        yield screens


async def _drop(response: aiohttp.ClientResponse) -> None:
    async for _ in response.content.iter_any():
        pass
