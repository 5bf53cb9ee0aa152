"""The core's own process, with faults made to happen: what it says, what it leaves behind, and that it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.framing import FrameSplitter, decode_from_core, frame
from engine.messages import Add, Fatal, FromCore, GetSnapshot, Outputs, Ready, Shutdown, Start, Step
from engine.protocol import Record, decode_item
from engine.watchdog import HUNG
from tests.engine.mirror import greedy
from tui.recording import read_recording

MEGABYTES = 16 * 1024 * 1024


class Core:
    """A core's process, at the other end of its socket. Its log lines are JSON, in a file."""

    def __init__(self, folder: Path) -> None:
        self.crash_dir = folder / "crashes"
        self._log = folder / "log"
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        with theirs, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine.core_process", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._messages = self._read()

    def start(self, **settings: Any) -> None:
        """Send what starts it, and wait until it serves."""
        config = EngineConfig(
            model="tiny", kv_memory=MEGABYTES, crash_dir=str(self.crash_dir), log_format="json", **settings
        )
        self.socket.sendall(frame(Start(config)))
        while not isinstance(self.next(), Ready):
            pass

    def next(self) -> FromCore:
        return next(self._messages)

    def rest(self) -> list[FromCore]:
        """All that it says until it ends."""
        return list(self._messages)

    def ended(self) -> int:
        return self.process.wait(60)

    def events(self, name: str) -> list[dict[str, Any]]:
        found = []
        for line in self._log.read_text().splitlines():
            if line.startswith("{"):
                event = json.loads(line)
                if event.get("event") == name:
                    found.append(event)
        return found

    def printed(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()

    def _read(self) -> Iterator[FromCore]:
        splitter = FrameSplitter()
        try:
            while data := self.socket.recv(1 << 16):
                yield from map(decode_from_core, splitter.feed(data))
        except ConnectionResetError:  # it has not read all that was sent
            return


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    core = Core(tmp_path)
    yield core
    core.close()


def fatal_of(told: list[FromCore]) -> Fatal:
    (fatal,) = [message for message in told if isinstance(message, Fatal)]
    assert told[-1] is fatal, "something was told after the end"
    return fatal


def ask(core: Core) -> None:
    core.socket.sendall(frame(Add("a", tuple(range(40)), greedy(300, ignore_eos=True))))


def test_wrong_books_stop_the_engine_and_leave_the_steps_before(core: Core) -> None:
    core.start(faults=("corrupt@50",), check_every=1)
    ask(core)
    told = core.rest()
    fatal = fatal_of(told)
    assert core.ended() == 1
    assert fatal.message.startswith("the engine stopped: its books do not agree: ")
    (path,) = core.crash_dir.iterdir()
    assert fatal.crash_file == str(path)
    (event,) = core.events("engine_failed")
    assert event["message"] == f"{fatal.message}; the steps before it: paged-top play {path}"
    assert (event["level"], event["crash_file"]) == ("critical", str(path))

    steps = [message for message in told if isinstance(message, Step)]
    recorded = list(read_recording(path))
    assert recorded[1:] == [decode_item(step.json) for step in steps]
    assert recorded[-1].seq == steps[-1].seq == 49
    assert sum(isinstance(message, Outputs) for message in told) == 49
    assert isinstance(recorded[-1], Record)
    shown = subprocess.run(
        [sys.executable, "-m", "tui.cli", "play", str(path), "--once"], capture_output=True, text=True, timeout=60
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "tiny" in shown.stdout


def test_a_step_that_hangs_ends_the_process(core: Core) -> None:
    core.start(faults=("hang@20",), step_timeout=1.0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent says when to end
        core.process.send_signal(number)
    ask(core)
    fatal = fatal_of(core.rest())
    assert core.ended() == HUNG
    assert "(--step-timeout 1)" in fatal.message
    (path,) = core.crash_dir.iterdir()
    assert [item.seq for item in read_recording(path)] == list(range(20))
    assert len(core.events("step_hung")) == len(core.events("engine_failed")) == 1
    printed = core.printed()
    assert "Thread 0x" in printed
    assert "in compute" in printed, "the stack of the step"


def test_a_device_that_computes_nothing_ends_the_engine_though_no_crash_file_can_be_written(core: Core) -> None:
    core.crash_dir.write_bytes(b"no folder")
    core.start(faults=("step-error%1",))
    for number in range(3):
        core.socket.sendall(frame(Add(f"r{number}", (number, 1), greedy(9, ignore_eos=True))))
        while not isinstance(core.next(), Step):
            pass
    fatal = fatal_of(core.rest())
    assert core.ended() == 1
    assert fatal.message.startswith("the engine stopped: 3 steps in a row failed, the last because ")
    assert fatal.crash_file == ""
    assert len(core.events("crash_file_failed")) == 1
    (event,) = core.events("engine_failed")
    assert "StepsFail" in str(event["error"])


def test_a_core_that_serves_and_is_told_what_makes_no_sense_ends(core: Core) -> None:
    core.start()
    core.socket.sendall(frame(GetSnapshot(1)) + struct.pack("<I", 3) + b"\xc1\xc1\xc1")
    fatal = fatal_of(core.rest())
    assert core.ended() == 1
    assert fatal.message.startswith("the engine's process was told what makes no sense: a frame of 3 bytes")
    assert len(core.events("bad_frame")) == 1


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"\xff\xff\xff\xff" + b"x" * 100_000, "a frame has 4,294,967,295 bytes"),
        (struct.pack("<I", 12) + b"GET / HTTP/1", "a frame of 12 bytes is no message"),
        (frame(Shutdown()), "the first message does not start the engine"),
    ],
    ids=["4 GiB", "HTTP", "no start"],
)
def test_what_is_no_start_is_refused(core: Core, sent: bytes, message: str) -> None:
    core.socket.sendall(sent)
    assert message in fatal_of(core.rest()).message
    assert core.ended() == 1


def test_a_core_that_nobody_starts_ends_with_its_socket(core: Core) -> None:
    core.socket.close()
    assert core.ended() == 1
