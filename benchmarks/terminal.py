"""A program in a pseudo-terminal of its own: what it paints is read and counted, and what it costs is asked of /proc.

A frame is a synchronized update (DEC mode 2026, which this terminal says it knows) that ends; those that end within
20 ms of the frame before belong to it.
"""

from __future__ import annotations

import os
import re
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

COLUMNS, LINES = 160, 48
SAME_FRAME = 0.02  # seconds
QUIT_SECONDS = 10.0
_ASKED, _ANSWER = b"\x1b[?2026$p", b"\x1b[?2026;2$y"  # does it know synchronized updates? yes, and none is under way
_END = b"\x1b[?2026l"
_KEPT = 64  # bytes of the last chunk that may begin what the next one ends
_TOLD = 4096  # before the picture is whole: what says why it never will be
_TICK = os.sysconf("SC_CLK_TCK")


class ScreenError(RuntimeError):
    """The program ended, or painted nothing in time."""


class Painted:
    """What a program has written: `bytes`, `frames`, and when the picture was `whole` first (None: not yet).

    A picture is whole at the end of the first frame after it began to show a word that only a whole one has on it.
    """

    def __init__(self, shows: str) -> None:
        self.bytes = 0
        self.frames = 0
        self.whole: float | None = None
        self.rest = b""  # the end of it
        self._shows = shows.encode()
        self._shown = False
        self._last_frame = -SAME_FRAME

    def take(self, data: bytes, now: float) -> bool:
        """Count what was read at a moment, in seconds; whether it asks for an answer."""
        self.bytes += len(data)
        old, text = len(self.rest), self.rest + data
        shown = 0 if self._shown else text.find(self._shows)
        for found in re.finditer(re.escape(_END), text):
            if found.end() <= old:
                continue
            if now - self._last_frame >= SAME_FRAME:
                self.frames += 1
                self._last_frame = now
            if self.whole is None and 0 <= shown < found.start():
                self.whole = now
        self._shown = self._shown or shown >= 0
        asks = _ASKED in text and _ASKED not in self.rest
        self.rest = text[-(_KEPT if self.whole is not None else _TOLD) :]
        return asks


class Terminal:
    """Runs a command and counts what it has `painted`, in seconds since its start. `close` it in any case."""

    def __init__(self, command: Sequence[str], shows: str, environment: Mapping[str, str], folder: Path) -> None:
        """`shows`: a word that only a whole picture has on it."""
        self.painted = Painted(shows)
        self._news = threading.Event()  # the picture is whole, or the program has ended
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (LINES, COLUMNS))
        self._began = time.monotonic()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for_picture(self, seconds: float) -> float:
        """When the picture was whole. Raises ScreenError."""
        over = self._news.wait(seconds)
        if self.painted.whole is None:
            what = "the program ended before its picture was whole" if over else f"no whole picture in {seconds:.0f} s"
            raise ScreenError(f"{what}; the last output was {_plain(self.painted.rest)!r}")
        return self.painted.whole

    def cpu_seconds(self) -> float:
        """Of all threads, in user and system mode. Raises ScreenError once the program has ended."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def peak_bytes(self) -> int:
        """The most memory that was resident at once."""
        found = re.search(r"^VmHWM:\s+(\d+) kB", self._proc("status"), re.MULTILINE)
        if found is None:
            raise ScreenError("the program has ended")
        return int(found[1]) * 1024

    def close(self) -> int:
        """Press q, wait for the end, and return the exit code; what does not end is killed."""
        if self._process.poll() is None:
            try:
                os.write(self._ours, b"q")
                self._process.wait(QUIT_SECONDS)
            except (OSError, subprocess.TimeoutExpired):
                self._process.kill()
        code = self._process.wait()
        self._reader.join()
        os.close(self._ours)
        return code

    def _proc(self, name: str) -> str:
        if self._process.poll() is not None:
            raise ScreenError(
                f"the program ended with exit code {self._process.returncode}: {_plain(self.painted.rest)!r}"
            )
        return Path(f"/proc/{self._process.pid}/{name}").read_text()

    def _read(self) -> None:
        """Until the other end is closed: count, and answer what a terminal answers."""
        while True:
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:  # how Linux says that nobody has it open any more
                data = b""
            if not data:
                self._news.set()
                return
            if self.painted.take(data, time.monotonic() - self._began):
                os.write(self._ours, _ANSWER)
            if self.painted.whole is not None:
                self._news.set()


def _plain(data: bytes) -> str:
    """The end of what was written, without its escape sequences."""
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x1f]", "", data.decode("utf-8", "replace"))[-400:]
