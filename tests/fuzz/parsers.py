"""`python -m tests.fuzz.parsers`: damaged inputs to everything that reads what strangers wrote (tests/fuzz/targets.py).

Each reader works in a process of its own, with bounded memory, and what it reads lies in memory that outlives it: a
crash or a hang is told with the input that made it. All follows from `--seed`; `--replay FILE` gives one input again.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tests.fuzz.structured import structured
from tests.fuzz.target import Target
from tests.fuzz.targets import BY_NAME, TARGETS

INPUT_SECONDS = 5.0  # after which an input is said to hang
STUCK_SECONDS = 30.0  # after which a process is, though no signal could tell
MEMORY = 1 << 30  # bytes of address space beyond what a process has when it begins
GROWTH = 200 << 20  # bytes that it may have grown by when it ends
LONGEST = 1 << 22  # bytes of an input
STRUCTURED = 50  # of so many inputs, one is drawn by hypothesis


class Hangs(BaseException):
    """An input takes too long. No Exception, so that no reader takes it for its own."""


class Found(NamedTuple):
    """What became of a target: how often each outcome came, or what went wrong (`problem`) and on which input."""

    name: str
    outcomes: dict[str, int]
    seconds: float
    grown: int  # bytes
    problem: str = ""
    data: bytes = b""


def fuzz(target: Target, count: int, seed: int, board: mmap.mmap) -> Found:
    """Give a target `count` inputs. `board` holds the number of the input under way, and its bytes."""
    outcomes: Counter[str] = Counter()
    make = target.generator()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as name:
        folder = Path(name)
        before = _resident()

        def take(data: bytes) -> str:
            _write(board, sum(outcomes.values()), data)
            signal.setitimer(signal.ITIMER_REAL, INPUT_SECONDS)
            try:
                error = target.take(data, folder)
            except (Exception, Hangs):
                return traceback.format_exc()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            outcomes[error.__name__ if error else "read"] += 1
            return ""

        try:
            for index in range(count - count // STRUCTURED):
                data = make(random.Random(f"{seed}:{target.name}:{index}"))
                if problem := take(data):
                    return Found(target.name, dict(outcomes), time.monotonic() - started, 0, problem, data)
            if failure := structured(target.seeds(), count // STRUCTURED, seed, take):
                return Found(target.name, dict(outcomes), time.monotonic() - started, 0, *failure)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()
        grown = _resident() - before
    problem = f"memory grew by {grown >> 20} MiB" if grown > GROWTH else ""
    return Found(target.name, dict(outcomes), time.monotonic() - started, grown, problem)


def _work(target: Target, count: int, seed: int, board: mmap.mmap, answer: Connection) -> None:
    """A process's whole life."""
    signal.signal(signal.SIGALRM, _hangs)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    answer.send(fuzz(target, count, seed, board))
    answer.close()
    os._exit(0)  # nothing of the parent's is to be cleaned up here


def _hangs(number: int, frame: FrameType | None) -> None:
    raise Hangs


def _write(board: mmap.mmap, number: int, data: bytes) -> None:
    board.seek(0)
    board.write(number.to_bytes(8, "little") + len(data).to_bytes(8, "little") + data[: LONGEST - 16])


def _written(board: mmap.mmap) -> tuple[int, bytes]:
    number, size = int.from_bytes(board[:8], "little"), int.from_bytes(board[8:16], "little")
    return number, board[16 : 16 + size]


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _memory_folder() -> str | None:
    """For files that live for a moment: no disk, if there is a folder in memory."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class _Watched:
    """A target's process, and the board that it writes to."""

    def __init__(self, target: Target, count: int, seed: int) -> None:
        self.target = target
        self._board = mmap.mmap(-1, LONGEST)
        self._answer, theirs = multiprocessing.Pipe(duplex=False)
        work = multiprocessing.get_context("fork").Process(
            target=_work, args=(target, count, seed, self._board, theirs), daemon=True
        )
        work.start()
        theirs.close()
        self._process = work
        self._number, self._heard = -1, time.monotonic()
        self._started = time.monotonic()

    def poll(self) -> Found | None:
        """What it found, once it has; a process that died or hangs has found that."""
        if self._answer.poll():
            try:
                found: Found = self._answer.recv()
            except EOFError:
                self._process.join()
                return self._failed(f"the process died (exit code {self._process.exitcode})")
            self._process.join()
            return found
        number, _ = _written(self._board)
        if number != self._number:
            self._number, self._heard = number, time.monotonic()
        elif time.monotonic() - self._heard > STUCK_SECONDS:
            self._process.kill()
            self._process.join()
            return self._failed(f"hangs for more than {STUCK_SECONDS:.0f} s, and hears no signal")
        return None

    def _failed(self, problem: str) -> Found:
        number, data = _written(self._board)
        return Found(self.target.name, {"inputs": number}, time.monotonic() - self._started, 0, problem, data)


def run(names: list[str], count: int, seed: int, jobs: int, save: Path) -> int:
    """Fuzz these targets; returns how many have a problem. The inputs that made them are kept in `save`."""
    waiting, running, problems = [BY_NAME[name] for name in names], list[_Watched](), 0
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_Watched(waiting.pop(0), count, seed))
        for one in list(running):
            found = one.poll()
            if found is None:
                continue
            running.remove(one)
            _tell(found)
            if found.problem:
                problems += 1
                save.mkdir(parents=True, exist_ok=True)
                file = save / f"{found.name}-{seed}"
                file.write_bytes(found.data)
                print(
                    f"{found.problem}\n  the input: {file}\n  again: --target {found.name} --replay {file}", flush=True
                )
        time.sleep(0.02)
    return problems


def _tell(found: Found) -> None:
    outcomes = ", ".join(f"{count:,} {what}" for what, count in sorted(found.outcomes.items()))
    verdict = "FAILED" if found.problem else "ok"
    print(f"{found.name:18} {verdict:6} {found.seconds:6.1f} s {found.grown >> 20:4} MiB  {outcomes}", flush=True)


def replay(target: Target, file: Path) -> int:
    """One input again, with the traceback that it makes."""
    signal.signal(signal.SIGALRM, _hangs)
    with tempfile.TemporaryDirectory() as folder:
        signal.setitimer(signal.ITIMER_REAL, INPUT_SECONDS)
        error = target.take(file.read_bytes(), Path(folder))
        signal.setitimer(signal.ITIMER_REAL, 0)
    print(f"{target.name}: {error.__name__ if error else 'read'}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.parsers", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="inputs for each reader (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="readers at a time (default: the cores)")
    parser.add_argument("--target", nargs="+", choices=[*BY_NAME], default=[target.name for target in TARGETS])
    parser.add_argument("--save", type=Path, default=Path("build/fuzz"), help="folder for inputs that fail")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="give one input again to --target")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        return replay(BY_NAME[arguments.target[0]], arguments.replay)
    started = time.monotonic()
    problems = run(arguments.target, arguments.count, arguments.seed, arguments.jobs, arguments.save)
    inputs = arguments.count * len(arguments.target)
    print(
        f"{inputs:,} inputs to {len(arguments.target)} readers in {time.monotonic() - started:.0f} s: {problems} failed"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
