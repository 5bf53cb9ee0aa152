"""`python -m benchmarks.screen`: what paged-top costs while it shows a recording, and how soon its picture is there.

The real program plays the file in a pseudo-terminal of 160×48 that reads and discards what it paints. The times to the
first whole picture are medians of fresh starts; with --engine also over HTTP, against a tiny engine of its own.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.compare import tell_if_busy, written_json
from benchmarks.recordings import MODEL, POOLS, Pool, recording
from benchmarks.report import machine
from benchmarks.terminal import COLUMNS, LINES, ScreenError, Terminal
from engine.cli import between, number

ROOT = Path(__file__).parent.parent
PROGRAM = (sys.executable, "-m", "tui.cli")
WARM_SECONDS = 5.0  # after the first picture: imports, and the scan of the file, are over
SPARE_SECONDS = 30.0  # of the recording beyond what is measured
PICTURE_SECONDS = 60.0  # that a start may take at all
ENGINE_SECONDS = 60.0
START_AIM = 0.8  # seconds
CPU_AIMS = {"usual": 0.10, "million": 0.40}  # of a core
FRAMES_AIMS = {"million": 10.0}  # a second


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the running program: `cpu` is the share of one core; frames and bytes are per second."""

    seconds: float
    cpu: float
    frames: float
    bytes: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Start:
    """To the first whole picture: seconds, and of those what the program computed for, on a busy machine fewer."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of one pool, or of an engine at a URL; each of `starts` is a run of its own."""

    name: str
    starts: tuple[Start, ...]
    cost: Cost | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: `met` None where there is no aim."""

    name: str
    what: str
    measured: str
    aim: str = ""
    met: bool | None = None


def environment(folder: Path) -> dict[str, str]:
    """That of a terminal with all colours, without what this shell has set for paged-top; settings lie in `folder`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PAGED_TOP_", "TEXTUAL"))}
    for key in ("NO_COLOR", "COLUMNS", "LINES", "CI"):
        kept.pop(key, None)
    colours = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    return kept | colours | {"XDG_CONFIG_HOME": str(folder), "PYTHONPATH": str(ROOT)}


def start(arguments: Sequence[str], shows: str, repeats: int, folder: Path) -> tuple[Start, ...]:
    """Start the program anew each time. Raises ScreenError."""
    found = []
    for _ in range(repeats):
        terminal = Terminal([*PROGRAM, *arguments], shows, environment(folder), folder)
        try:
            found.append(Start(terminal.wait_for_picture(PICTURE_SECONDS), terminal.cpu_seconds()))
        finally:
            terminal.close()
    return tuple(found)


def cost(
    arguments: Sequence[str], shows: str, seconds: float, folder: Path, warm_seconds: float = WARM_SECONDS
) -> Cost:
    """Of a program that is warm, over so many seconds. Raises ScreenError."""
    terminal = Terminal([*PROGRAM, *arguments], shows, environment(folder), folder)
    try:
        terminal.wait_for_picture(PICTURE_SECONDS)
        time.sleep(warm_seconds)
        before = (time.monotonic(), terminal.cpu_seconds(), terminal.painted.frames, terminal.painted.bytes)
        time.sleep(seconds)
        after = (time.monotonic(), terminal.cpu_seconds(), terminal.painted.frames, terminal.painted.bytes)
        peak = terminal.peak_bytes()
    finally:
        code = terminal.close()
    if code:
        raise ScreenError(f"paged-top ended with exit code {code}")
    took, cpu, frames, written_bytes = (b - a for a, b in zip(before, after, strict=True))
    return Cost(took, cpu / took, frames / took, written_bytes / took, peak)


def measure(pool: Pool, seconds: float, repeats: int, folder: Path, say: Callable[[str], None]) -> Found:
    """Play a recording of `pool`. Raises ScreenError."""
    arguments = ("play", str(recording(pool, seconds + SPARE_SECONDS, say)))
    say(f"{pool.name}: starting {repeats} times")
    starts = start(arguments, MODEL, repeats, folder)
    say(f"{pool.name}: playing {seconds:.0f} s")
    return Found(pool.name, starts, cost(arguments, MODEL, seconds, folder))


@contextmanager
def tiny_engine(say: Callable[[str], None]) -> Iterator[str]:
    """The URL of an engine that serves. Raises ScreenError."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    say("starting a tiny engine")
    command = [sys.executable, "-m", "engine.cli", "serve", "--model", "tiny", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + ENGINE_SECONDS
        while not _serves(url):
            if process.poll() is not None or time.monotonic() > end:
                raise ScreenError("the tiny engine did not start")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def _serves(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def rows(found: Found) -> list[Row]:
    """The lines of a table, aims beside."""
    seconds = [one.seconds for one in found.starts]
    median, computed = statistics.median(seconds), statistics.median(one.cpu_seconds for one in found.starts)
    spread = f" ({min(seconds):.2f}..{max(seconds):.2f}, {len(seconds)} starts)"
    out = [
        Row(found.name, "first picture", f"{median:.2f} s{spread}", f"≤ {START_AIM} s", median <= START_AIM),
        Row(found.name, "processor time until then", f"{computed:.2f} s"),
    ]
    if found.cost is None:
        return out
    cpu_aim, frames_aim, one = CPU_AIMS.get(found.name), FRAMES_AIMS.get(found.name), found.cost
    within = None if cpu_aim is None else one.cpu < cpu_aim
    out.append(Row(found.name, "of a core", f"{one.cpu:.1%}", "" if cpu_aim is None else f"< {cpu_aim:.0%}", within))
    enough = None if frames_aim is None else round(one.frames, 1) >= frames_aim
    aim = "" if frames_aim is None else f"≥ {frames_aim:.0f}/s"
    out.append(Row(found.name, "frames", f"{one.frames:.1f}/s", aim, enough))
    out.append(Row(found.name, "peak memory", f"{one.peak_bytes / 2**20:,.0f} MiB"))
    out.append(Row(found.name, "written to the terminal", f"{one.bytes / 1000:,.1f} kB/s"))
    return out


def table(measured: Sequence[Found]) -> Table:
    whole = Table(title=f"paged-top in a terminal of {COLUMNS}×{LINES}", title_justify="left")
    for heading in ("pool", "what", "measured", "aim", ""):
        whole.add_column(heading, no_wrap=True)
    for found in measured:
        for row in rows(found):
            whole.add_row(row.name, row.what, row.measured, row.aim, {None: "", True: "met", False: "missed"}[row.met])
        whole.add_section()
    return whole


def as_json(measured: Sequence[Found], facts: Mapping[str, object]) -> dict[str, object]:
    return {"machine": dict(facts), "screen": [COLUMNS, LINES], "measured": [asdict(found) for found in measured]}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.screen", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--pool", choices=(*POOLS, "both", "none"), default="both", help="default: %(default)s")
    add("--seconds", type=number(1.0, 3600.0), default=60.0, metavar="N", help="played and measured (default: 60)")
    add("--starts", type=between(1, 100), default=5, metavar="N", help="of each kind (default: 5)")
    add("--engine", action="store_true", help="also the start with --url, against a tiny engine")
    add("--json", type=Path, metavar="FILE", help="write the figures here")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    errors, code = Console(stderr=True), 0
    measured: list[Found] = []
    tell_if_busy(errors)

    def say(text: str) -> None:
        errors.print(text, highlight=False, markup=False)

    pools = (
        list(POOLS.values()) if arguments.pool == "both" else [POOLS[name] for name in POOLS if name == arguments.pool]
    )
    with tempfile.TemporaryDirectory(prefix="paged-top-screen-") as name:
        folder = Path(name)
        try:
            measured.extend(measure(pool, arguments.seconds, arguments.starts, folder, say) for pool in pools)
            if arguments.engine:
                with tiny_engine(say) as url:
                    say(f"{url}: starting {arguments.starts} times")
                    starts = start(("--url", url), "tiny", arguments.starts, folder)
                measured.append(Found("tiny engine, --url", starts))
        except KeyboardInterrupt:
            say("interrupted: what follows was measured until then")
            code = 130
        except ScreenError as error:
            say(f"benchmarks.screen: error: {error}")
            code = 1
    if measured:
        Console(width=None if sys.stdout.isatty() else 110).print(table(measured))
    if arguments.json is not None:
        code = written_json(arguments.json, as_json(measured, machine()), errors, "benchmarks.screen") or code
    return code


if __name__ == "__main__":
    sys.exit(main())
