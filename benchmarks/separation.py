"""`python -m benchmarks.separation`: what separate pools for prefill and decode do for chats beside long prompts.

Chats go on without a pause while 3,000-token prompts arrive at even intervals, always the same ones. In turn they are
served by two workers of one thread each that both serve whole requests, with prompts computed in one step and in
chunks, by the same two as a prefill and a decode worker (the same processes, switched live), and by one engine of two
threads. The load is chosen by `benchmarks.separation_load` from speeds that are measured first.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path

import aiohttp
import numpy as np
from rich.console import Console

from benchmarks.compare import tell_if_busy
from benchmarks.options import check_file
from benchmarks.report import machine
from benchmarks.separation_load import (
    CHAT_OUTPUT,
    CHAT_PROMPT,
    LONG_PROMPT,
    MOST_USERS,
    Load,
    Speed,
    chosen,
    fitted,
    stopped_share,
)
from engine.cli import between, number
from engine.config import DEFAULT_MODEL
from loadgen.command import Interrupt
from loadgen.engine_process import EngineProcess, EngineStartError
from loadgen.experiments.measuring import Bench
from loadgen.keys import NO_KEYS
from loadgen.mix import Kind, Lengths, Mix, mixed
from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.document import document
from loadgen.results.run_file import RunFile
from loadgen.settings import COLOCATED, SEPARATED, Settings
from loadgen.synth import write_trace

AIM = 0.5  # p99 ITL of chats, separated against colocated with prompts in one step: at most
WARMUP = 0.2  # of a run's seconds: left out of the figures
FEW, MANY = 8, 48  # chats at once, when steps are measured first
LEAST_ROUNDS = 3  # that show anything: a coin falls three times on one side in a quarter of cases
TOO_FEW = "not shown: too few rounds"
KV_MEMORY = "2GiB"  # of each worker: nothing is to be preempted
TURNS = 200  # of a user: more than a run is long


class CannotMeasure(Exception):
    """The message is for a person."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve: by the cluster, its pools as `pools` says, or (None) by one engine."""

    name: str
    pools: str | None
    chunked: bool


WHOLE = Way("colocated, prompts in one step", COLOCATED, False)
CHUNKED = Way("colocated, prompts in chunks", COLOCATED, True)
SEPARATE = Way("separated (1P1D)", SEPARATED, True)
WAYS = (
    WHOLE,
    CHUNKED,
    SEPARATE,
    Way("one engine, prompts in one step", None, False),
    Way("one engine, prompts in chunks", None, True),
)
CLUSTER = tuple(way for way in WAYS if way.pools is not None)
CHATS, LONG = "chats", "long prompts"
ITLS = {
    f"ITL of chats, {name} (ms)": percent for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
}
P99, CHAT_TTFT, LONG_TTFT = "ITL of chats, p99 (ms)", "TTFT of chats, p90 (ms)", "TTFT of long prompts, p50 (ms)"
THROUGHPUT, STOPPED = "output tokens/s", "gaps of chats that a long prompt stopped"


Ran = dict[str, float]  # the figures of one run, by title


def figures(records: Iterable[RequestRecord], window: tuple[float, float], speed: Speed) -> Ran:
    """Of gaps that end, and requests that get their first token, within the window (seconds of the run).

    By moments, not by requests: a chat may take longer than a run's beginning. Raises CannotMeasure if a request
    failed, or there was nothing of a kind.
    """
    begin, end = window
    gaps: list[float] = []
    waits: dict[str, list[float]] = {CHATS: [], LONG: []}
    tokens = 0.0
    for record in records:
        if record.outcome.failed:
            raise CannotMeasure(f"{record.session}: {record.outcome}: {record.detail}")
        if not record.chunks or record.scheduled is None or record.outcome is not Outcome.COMPLETED:
            continue
        of = LONG if (record.input_tokens or 0) >= LONG_PROMPT else CHATS
        if begin <= record.chunks[0] < end:
            waits[of].append(record.chunks[0] - record.scheduled)
        inside = [(before, after) for before, after in pairwise(record.chunks) if begin <= after < end]
        tokens += len(inside) * record.output_tokens / len(record.chunks)
        if of == CHATS:
            gaps += [after - before for before, after in inside]
    if not gaps or not all(waits.values()):
        raise CannotMeasure(f"nothing of some kind came between seconds {begin:g} and {end:g}: give more --seconds")
    told = {title: float(np.percentile(gaps, percent)) * 1000 for title, percent in ITLS.items()}
    for of, percents in ((CHATS, (50, 90, 99)), (LONG, (50, 90))):
        told |= {f"TTFT of {of}, p{p} (ms)": float(np.percentile(waits[of], p)) * 1000 for p in percents}
    stopped = stopped_share(gaps, speed.prefill)
    assert stopped is not None
    return told | {THROUGHPUT: tokens / (end - begin), STOPPED: stopped}


class Measuring:
    """Runs against a cluster of two workers and an engine of two threads, which are there all the time."""

    def __init__(self, model: str, folder: Path, say: Callable[[str], None]) -> None:
        self._model, self._folder, self._say = model, folder, say
        self._bench = Bench(Console(file=io.StringIO()), Interrupt(), NO_KEYS)
        self._urls: dict[bool, str] = {}  # by whether it is the cluster

    async def start(self, stack: AsyncExitStack, ways: Sequence[Way]) -> None:
        """What these ways need. Raises `EngineStartError`."""
        common = ["--model", self._model, "--max-model-len", "4096", "--max-num-seqs", "256"]
        for cluster, threads, more in (
            (True, 1, ["--prefill", "1", "--decode", "1", "--kv-memory", KV_MEMORY]),
            (False, 2, ["--kv-memory", "4GiB"]),
        ):
            if not cluster and all(way.pools is not None for way in ways):
                continue
            os.environ["OMP_NUM_THREADS"] = str(threads)  # of each worker: it goes before what the engine would choose
            engine = EngineProcess([*common, *more], lambda _: None)
            self._urls[cluster] = (await stack.enter_async_context(engine)).url

    async def run(self, way: Way, mix: Mix, label: str, seconds: float | None = None) -> RunFile:
        """Play a mix; with `seconds` nothing is sent after these, and what goes on then comes to its end."""
        header, sessions = mixed(mix)
        trace = self._folder / "trace.jsonl"
        write_trace(header, sessions, trace)
        settings = Settings(
            file=str(trace),
            url=self._urls[way.pools is not None],
            pools=way.pools,
            control={"chunked_prefill": way.chunked},
            until=() if seconds is None else (f"time={seconds:g}s",),
            timeout=600.0,
        )
        self._say(label)
        return await self._bench.measure(settings, self._folder / f"{label.replace(' ', '-')}.jsonl", label)

    async def speed(self) -> Speed:
        """What one worker alone does: a long prompt, then decodes in batches, in the decode pool.

        Raises `CannotMeasure`.
        """
        one = Lengths(16, 16)
        few_chats = Kind(1.0, one, Lengths(1, 1), users=1)
        lone = Mix(few_chats, Kind(1 / 60, Lengths(LONG_PROMPT, LONG_PROMPT), one, users=1, turns=3), 60.0)
        told = document(await self.run(WHOLE, lone, "a long prompt alone"))
        prefill = told["classes"]["of"]["long"]["p50_ttft_ms"] / 1000
        steps = []
        for users in (FEW, MANY):
            chats = Kind(1.0, one, Lengths(96, 96), users=users)
            mix = Mix(chats, Kind(1.0, Lengths(64, 64), one, users=1), 60.0)
            told = document(await self.run(SEPARATE, mix, f"{users} chats alone"))
            worker = told["engine"]["cluster"]["workers"]["decode-0"]
            steps.append((worker["mean_batch_rows"], worker["mean_decode_step_alone_ms"] / 1000))
        try:
            return fitted(prefill, *steps)
        except (ValueError, ZeroDivisionError) as error:
            raise CannotMeasure(f"steps of (rows, seconds) {steps}: {error}") from None


async def measure(options: argparse.Namespace, say: Callable[[str], None]) -> tuple[Speed, Load, list[dict[str, Ran]]]:
    """All rounds. Raises `CannotMeasure` and `EngineStartError`."""
    rounds: list[dict[str, Ran]] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="separation-")))
        measuring = Measuring(options.model, folder, say)
        ways = WAYS if options.ways == "all" else CLUSTER
        await measuring.start(stack, ways)
        speed = await measuring.speed()
        load = chosen(speed)
        say(f"a long prompt takes {speed.prefill:.2f} s: {load.users} users, {load.rate:.3f} long prompts/s")
        for number in range(1, options.rounds + 1):
            mix = load.mix(options.seconds, TURNS, seed=number)
            order = ways if number % 2 else ways[::-1]  # so that a machine that gets slower does so to all
            done = {}
            for way in order:
                label = f"{number} of {options.rounds}: {way.name}"
                run = await measuring.run(way, mix, label, options.seconds)
                done[way.name] = figures(run.records(), (WARMUP * options.seconds, options.seconds), speed)
            rounds.append(done)
    return speed, load, rounds


def median(rounds: Sequence[dict[str, Ran]], way: Way, title: str) -> float:
    return statistics.median(done[way.name][title] for done in rounds)


def ratios(rounds: Sequence[dict[str, Ran]], way: Way, against: Way, title: str) -> list[float]:
    """Of each round, in ascending order."""
    return sorted(done[way.name][title] / done[against.name][title] for done in rounds)


def report(speed: Speed, load: Load, rounds: Sequence[dict[str, Ran]], options: argparse.Namespace) -> str:
    """In Markdown."""
    here = machine()
    ways = [way for way in WAYS if way.name in rounds[0]]
    one_engine = "; one engine has two threads" if len(ways) > len(CLUSTER) else ""
    lines = [
        f"# Prefill and decode in separate pools, {date.today()}",
        "",
        f"`python -m benchmarks.separation --model {options.model} --seconds {options.seconds:g} --rounds "
        f"{options.rounds} --ways {options.ways}` on {here['cpu']}, {here['cores']} cores, load {here['load']:.1f} at "
        "the end. Two workers "
        f"of one thread each, the same processes in all three ways{one_engine}. Medians of "
        f"{len(rounds)} round{'s' * (len(rounds) != 1)}, each way once in each.",
        "",
        f"{load.users} users chat without a pause (prompts of {CHAT_PROMPT} tokens, answers of {CHAT_OUTPUT}), and a "
        f"prompt of {LONG_PROMPT:,} tokens comes every {1 / load.rate:.1f} s. Chosen from what one worker does alone: "
        f"such a prompt takes {speed.prefill:.2f} s, a decode step {speed.step * 1000:.1f} ms and "
        f"{speed.row * 1000:.2f} ms more for each row. Long prompts fill three quarters of a prefill worker; "
        f"{_how_many(load)}. How many were, is in the last row. The first fifth of each run is left out.",
        "",
        f"| | {' | '.join(way.name for way in ways)} |",
        f"| --- |{' ---: |' * len(ways)}",
    ]
    for title in rounds[0][WHOLE.name]:
        cells = (_cell(title, median(rounds, way, title)) for way in ways)
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Ratios are of one round each: the median (least to most). Aim: at most {AIM} against prompts in one step.",
        "",
        f"| {SEPARATE.name} against | p99 ITL of chats | p90 TTFT of chats | p50 TTFT of long prompts | tokens/s |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    compared = (P99, CHAT_TTFT, LONG_TTFT, THROUGHPUT)
    for way in ways:
        if way is not SEPARATE:
            cells = (_ratio(ratios(rounds, SEPARATE, way, title)) for title in compared)
            lines.append(f"| {way.name} | {' | '.join(cells)} |")
    lines += ["", verdict(rounds)]
    return "\n".join(lines) + "\n"


def _how_many(load: Load) -> str:
    """Why there are so many chats."""
    wanted = "for stops by long prompts to be 2.5 % of all gaps between a chat's tokens, so that p99 is one of them"
    if load.users < MOST_USERS:
        return f"there are as many chats as it takes {wanted}"
    return f"it would take more chats than the {MOST_USERS} that there are at most, or as many, {wanted}"


def verdict(rounds: Sequence[dict[str, Ran]]) -> str:
    """What was measured, in words. What is not of one direction in all of several rounds is not shown."""
    told = ratios(rounds, SEPARATE, WHOLE, P99)
    within, enough = statistics.median(told) <= AIM, len(rounds) >= LEAST_ROUNDS
    if enough:
        met = "met" if within else "**missed**"
    else:
        met = f"{'within' if within else '**not** within'} the aim, but {TOO_FEW}"
    words = [f"p99 ITL of chats is {_ratio(told)} of that of colocated workers with prompts in one step: {met}."]
    for way in (WHOLE, CHUNKED):
        kinds = (("p99 ITL of chats", P99, False), ("output tokens/s", THROUGHPUT, True))
        for name, title, more_is_better in kinds:
            found = ratios(rounds, SEPARATE, way, title)
            if not enough:
                what = TOO_FEW
            elif found[0] > 1 or found[-1] < 1:
                what = "better" if (found[0] > 1) == more_is_better else "worse"
            else:
                what = "no difference shown"
            words.append(f"Against {way.name}: {name} {_ratio(found)}, {what}.")
    stopped = median(rounds, WHOLE, STOPPED)
    if stopped < 0.01:
        words.append(f"Only {stopped:.2%} of the gaps were stopped there: p99 does not show them.")
    return " ".join(words)


def _cell(title: str, value: float) -> str:
    return f"{value:.1%}" if title == STOPPED else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _ratio(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write what was asked for; 1 if the aim is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.separation", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="default: %(default)s")
    parser.add_argument("--seconds", type=number(5, 3600), default=80.0, metavar="S", help="of a run (default: 80)")
    parser.add_argument("--ways", choices=("all", "cluster"), default="all",
                        help="cluster: without the one engine of two threads (default: all)")  # fmt: skip
    parser.add_argument("--rounds", type=between(1, 100), default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report here, in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures here")
    options = parser.parse_args(argv)
    check_file(parser, "--out", options.out)
    check_file(parser, "--json", options.json)
    console = Console(stderr=True)
    tell_if_busy(console)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    try:
        speed, load, rounds = asyncio.run(measure(options, say))
    except (CannotMeasure, EngineStartError, aiohttp.ClientError) as error:
        say(f"benchmarks.separation: error: {error}")
        return 2
    told = report(speed, load, rounds, options)
    print(told, end="")
    if options.out is not None:
        options.out.write_text(told)
    if options.json is not None:
        options.json.write_text(json.dumps(rounds, indent=1) + "\n")
    return int(statistics.median(ratios(rounds, SEPARATE, WHOLE, P99)) > AIM)


if __name__ == "__main__":
    sys.exit(main())
