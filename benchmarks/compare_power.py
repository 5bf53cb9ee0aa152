"""`python -m benchmarks.compare_power`: how often `loadgen compare` is right, on the real engine.

Two engines are started, one of which takes a tenth longer for each step (`benchmarks.slowed_engine`). The command is
then run as anybody runs it: the first engine against itself, where it must find nothing, and against the slowed one,
where it must find that. Both kinds take turns, so that a noisy spell of the machine falls on both.

The engines compute with one thread each and one at a time, so that on two cores the client has one of its own. What a
comparison can find depends on how much its repeats scatter, so that is told too, with how many repeats it takes.
About seven minutes on two quiet cores; `--comparisons 3` gives a first impression.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.compare import tell_if_busy, written
from benchmarks.options import check_file
from benchmarks.report import machine
from loadgen.engine_process import EngineProcess, EngineStartError
from loadgen.experiments.compare import LEAST_REPEATS, Verdict
from loadgen.experiments.statistics import repeats_needed
from loadgen.experiments.tables import findings

PROGRAM = "benchmarks.compare_power"
REPEATS = 8  # of runs of about a second, which scatter more than the longer ones that the command is made for
SIDES = ("same", "slowed")  # what the engine is held against
NEEDED = 0.9  # of the comparisons of either kind must be right


class Comparison(msgspec.Struct, frozen=True):
    """One `loadgen compare`: whether it found any difference, what it said, and how far its repeats scattered."""

    against: str
    differs: bool
    slower_found: bool  # a latency is longer, or throughput less
    findings: list[str]
    tpot_change: float
    tpot_low: float
    tpot_high: float
    tpot_deviation: float  # of the logarithm of B / A from repeat to repeat


class Outcome(msgspec.Struct, frozen=True):
    """All comparisons with one side."""

    against: str
    right: int
    comparisons: int
    deviation: float  # of TPOT's ratio, the median over comparisons
    repeats_for_10_percent: int | None  # in nine of ten comparisons, by theory, at that deviation

    @property
    def met(self) -> bool:
        return self.right >= NEEDED * self.comparisons


def write_trace(path: Path, requests: int, tokens: int) -> None:
    """Requests of about so many tokens each, 20 ms apart: they share batches, and a run takes about a second."""
    lines: list[dict[str, Any]] = [{"format": "paged-top-chat", "version": 2}]
    for number in range(requests):
        user = f"Tell me {number + 2} things about the number {37 * number + 11}, one after the other."
        turn = {"user": user, "output_tokens": tokens + 7 * number % 9, "seed": number}
        lines.append({"session": f"s{number}", "arrival": number / 50, "turns": [turn]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


async def compare(trace: Path, folder: Path, a: str, b: str, against: str, repeats: int) -> Comparison:
    """Run the command. Raises RuntimeError with its own words if it fails."""
    out = folder / "compare.json"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.cli", "compare", str(trace), "--json", str(out), "--no-plots"),
        *("--a", f"url={a},name=engine", "--b", f"url={b},name={against}", "--repeat", str(repeats)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(
            f"loadgen compare ended with {process.returncode}: {told.decode('utf-8', 'replace')[-2000:]}"
        )
    return judged(json.loads(out.read_text()), against)


def judged(document: dict[str, Any], against: str) -> Comparison:
    """What a comparison's document says."""
    verdicts = msgspec.convert(document["verdicts"], list[Verdict])
    differing = [verdict for verdict in verdicts if verdict.differs]
    slower = [
        verdict for verdict in differing if ((verdict.change or 0) < 0) == (verdict.figure == "output_throughput")
    ]
    (tpot,) = (verdict for verdict in verdicts if verdict.figure == "tpot")
    if tpot.change is None or tpot.low is None or tpot.high is None or tpot.deviation is None:
        raise RuntimeError(f"no verdict on TPOT: {tpot.untold}")
    return Comparison(
        against=against,
        differs=bool(differing),
        slower_found=bool(slower) and len(slower) == len(differing),
        findings=findings(verdicts, ("engine", against)),
        tpot_change=tpot.change,
        tpot_low=tpot.low,
        tpot_high=tpot.high,
        tpot_deviation=tpot.deviation,
    )


def outcome(done: Sequence[Comparison], against: str) -> Outcome:
    """How often comparisons with one side were right: found nothing, or found it slower."""
    of_it = [one for one in done if one.against == against]
    right = sum(one.slower_found if against == "slowed" else not one.differs for one in of_it)
    deviation = statistics.median(one.tpot_deviation for one in of_it)
    return Outcome(against, right, len(of_it), deviation, repeats_needed(deviation, 0.0953, 6))


def table(done: Sequence[Comparison]) -> Table:
    """A line for each comparison."""
    drawn = Table(title="loadgen compare, the engine against ...", title_justify="left")
    for column in ("", "found", "TPOT", "between", "scatter of repeats"):
        drawn.add_column(column, justify="left" if column in ("", "found") else "right")
    for one in done:
        found = "slower" if one.slower_found else "something else" if one.differs else "no difference"
        drawn.add_row(
            one.against,
            found,
            f"{one.tpot_change:+.1%}",
            f"{one.tpot_low:+.1%} to {one.tpot_high:+.1%}",
            f"{one.tpot_deviation:.1%}",
        )
    return drawn


async def measure(options: argparse.Namespace, console: Console) -> list[Comparison]:
    """Start both engines and run all comparisons. Raises `EngineStartError` and RuntimeError."""
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    serve = ["serve", "--port", "0", "--model", options.model, "--kv-memory", "128MiB", "--max-model-len", "1024"]
    done: list[Comparison] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-power-")))
        write_trace(folder / "trace.jsonl", options.requests, options.tokens)

        async def start(*command: str) -> str:
            started = EngineProcess((), lambda _: None, [sys.executable, "-m", *command, *serve])
            return (await stack.enter_async_context(started)).url

        urls = {
            "same": await start("engine.cli"),
            "slowed": await start("benchmarks.slowed_engine", str(options.slower)),
        }
        for number in range(options.comparisons):
            for against in SIDES if number % 2 == 0 else reversed(SIDES):
                console.print(f"{number + 1} of {options.comparisons}: against {against}", highlight=False)
                done.append(
                    await compare(folder / "trace.jsonl", folder, urls["same"], urls[against], against, options.repeats)
                )
    return done


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=10, metavar="N", help="of each kind (default: 10)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"of each comparison (default: {REPEATS})")
    parser.add_argument("--slower", type=float, default=0.1, help="share of a step's time (default: 0.1)")
    parser.add_argument("--model", default="smollm2-135m", help="(default: smollm2-135m)")
    parser.add_argument("--threads", type=int, default=1, help="of each engine (default: 1)")
    parser.add_argument("--requests", type=int, default=8, help="of a run (default: 8)")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer, about (default: 24)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all comparisons to FILE")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """0: both kinds were right in nine of ten comparisons or more; 1: not; 3: an engine or a comparison failed."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if (
        min(options.comparisons, options.threads, options.requests, options.tokens) < 1
        or options.repeats < LEAST_REPEATS
    ):
        parser.error(f"expected numbers above 0, and at least {LEAST_REPEATS} --repeats")
    if not options.slower > 0:
        parser.error(f"--slower: expected a number above 0, got {options.slower:g}")
    check_file(parser, "--json", options.json)
    console, out = Console(stderr=True), Console()
    tell_if_busy(console)
    try:
        done = asyncio.run(measure(options, console))
    except (EngineStartError, RuntimeError) as error:
        console.print(f"{PROGRAM}: {error}", markup=False, highlight=False)
        return 3
    outcomes = [outcome(done, against) for against in SIDES]
    out.print(table(done))
    for one in outcomes:
        needed = one.repeats_for_10_percent or "more than 200"
        out.print(f"against {one.against}: right in {one.right} of {one.comparisons}", highlight=False)
        out.print(f"  repeats scatter by {one.deviation:.1%}: {needed} find 10 % in 9 of 10", highlight=False)
    if options.json is not None:
        document = {
            "machine": machine(),
            "options": {**vars(options), "json": None},
            "comparisons": done,
            "outcomes": outcomes,
        }
        data = msgspec.json.format(msgspec.json.encode(document)) + b"\n"
        if code := written(options.json, lambda path: _write(path, data), console, PROGRAM):
            return code
    return 0 if all(one.met for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
