"""`python -m benchmarks.planning`: predictions of `paged-engine simulate`, held against what clusters really do.

Of each way to serve, a short run with other sessions of the same trace says what its steps cost (least squares over its
step records, all engines at work together, so that what they take from each other is in it). By these costs the
simulator says at which speed of the trace requests wait noticeably and the engines still keep up. At that speed other
sessions again say what steps cost, and given this alone the simulator says what throughput and TTFT will be; then
`loadgen` measures them. Throughput is there what is asked for: what the engines can do is predicted and measured in the
same way, with nearly everything due at once.

Which prompts meet in a step depends on milliseconds, and percentiles on that. So a prediction is the mean of some
simulations whose steps are longer or shorter as those of the calibration were. To TTFT comes what passes outside the
engines, in the front and on the way to the client: in the mean of the calibration's requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
from rich.console import Console

from benchmarks.compare import tell_if_busy
from benchmarks.options import check_file
from benchmarks.report import machine
from benchmarks.step_costs import first_tokens, fitted, scattered, spread, timed
from engine.cli import number
from engine.cluster.protocol import ClusterControl
from engine.config import DEFAULT_MODEL
from engine.protocol import Control, EngineInfo, Record, Snapshot, decode_item, decode_snapshot
from engine.simulator.pools import PoolSimulator
from engine.simulator.prediction import Pools, PoolsPrediction
from engine.simulator.prediction import Settings as Simulated
from engine.simulator.runner import StepCost, StepWork
from engine.trace_lengths import read_trace
from loadgen.command import Interrupt
from loadgen.engine_process import EngineProcess, EngineStartError
from loadgen.experiments.measuring import Bench
from loadgen.keys import NO_KEYS
from loadgen.outcome import Outcome
from loadgen.results.run_file import RunFile
from loadgen.settings import Settings
from loadgen.sse import EventParser

AIM = 0.15
ROUGHLY, CALIBRATED = 250, 320  # the first sessions of the two calibrations; those before them are measured
TRACE = Path(__file__).resolve().parents[1] / "traces" / "chat500.jsonl"
FIRST = 4.0  # speed of the first calibration
SPEEDS = (3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0)  # tried in a simulation
UNLOADED = 0.25
SIMULATIONS = 9  # of which a prediction is the mean
AT_ONCE = 200.0  # a speed at which engines have all they can do
AT_ONCE_SHARE = 0.2  # of the sessions that are measured at the chosen speed
WAITING = 1.4  # TTFT p90, times that of an unloaded engine: requests wait, and no queue grows without end
KV_MEMORY = "1GiB"
LINK, LINK_LATENCY = 5e9, 0.003


class CannotMeasure(Exception):
    """The message is for a person."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve. `threads` of each engine: together the machine's two cores."""

    name: str
    arguments: tuple[str, ...]
    control: ClusterControl
    threads: int


WAYS = (
    Way("one engine, two threads", (), ClusterControl(replicas=1), 2),
    Way("2 replicas, a thread each", ("--replicas", "2"), ClusterControl(replicas=2), 1),
    Way("1P1D separated, a thread each", ("--prefill", "1", "--decode", "1"), ClusterControl(prefill=1, decode=1), 1),
)


class Calibration(msgspec.Struct, frozen=True):
    """What steps cost, the steps that say so, and the mean seconds of a TTFT that are spent in no engine."""

    cost: StepCost
    steps: tuple[tuple[StepWork, float], ...]
    outside: float

    def costs(self) -> Iterator[StepCost]:
        return (scattered(self.cost, self.steps, seed) for seed in range(SIMULATIONS))


class Figures(msgspec.Struct, frozen=True):
    """Tokens a second over the whole run, and seconds from when requests were due to their first text."""

    output_tokens_per_second: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    prompt_tokens: int


class Compared(msgspec.Struct, frozen=True):
    way: str
    cost: StepCost
    steps: int  # that the cost was fitted to
    cost_bias: float  # what the fitted costs come to, over what these steps took
    cost_scatter: float
    outside: float  # seconds of a TTFT that are spent in no engine
    speed: float
    requests: int
    busy: float  # of the busiest engine, as predicted
    unloaded_ttft_p90: float  # as predicted
    predicted: Figures
    measured: Figures
    full_requests: int  # nearly all due at once
    full_predicted: float  # output tokens a second
    full_measured: float

    def off(self, figure: str) -> float:
        """Predicted over measured, less 1."""
        return float(getattr(self.predicted, figure) / getattr(self.measured, figure) - 1)

    @property
    def full_off(self) -> float:
        return self.full_predicted / self.full_measured - 1


def sessions(first: int, trace_seconds: float, to: Path) -> Path:
    """Sessions of the trace from number `first` on that come within so many seconds of its time, as a trace. Raises
    CannotMeasure where that would be sessions that are kept for something else, or too few."""
    head, *lines = TRACE.read_text().splitlines()
    until = next((other for other in (ROUGHLY, CALIBRATED) if other > first), len(lines) - 1)
    every = [json.loads(line) for line in lines]
    chosen, begin = every[first:until], every[first]["arrival"]
    if every[until]["arrival"] - begin < trace_seconds:
        raise CannotMeasure(
            f"{TRACE.name} has {every[until]['arrival'] - begin:,.0f} s from session {first} on that are for this, and "
            f"{trace_seconds:,.0f} are asked for; give less --seconds or --calibration"
        )
    kept = [{**one, "arrival": one["arrival"] - begin} for one in chosen if one["arrival"] - begin <= trace_seconds]
    to.write_text("\n".join([head, *map(json.dumps, kept)]) + "\n")
    return to


def predict(trace: Path, way: Way, cost: StepCost, info: EngineInfo, speed: float) -> PoolsPrediction:
    requests = read_trace(trace)
    settings = Simulated(
        control=Control(),
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        num_host_blocks=0,
        kv_bytes_per_token=info.kv_bytes_per_token,
        max_model_len=info.max_model_len,
        cost=cost,
        speed=speed,
        requests=len(requests),
    )
    simulator = PoolSimulator(requests, settings, Pools(way.control, LINK, LINK_LATENCY))
    simulator.run()
    return simulator.prediction()


def predicted(simulated: Sequence[PoolsPrediction], outside: float) -> Figures:
    """The means of these simulations, with what passes `outside` the engines before a first token is seen."""

    def mean(of_one: Callable[[PoolsPrediction], float | None]) -> float:
        return statistics.fmean(of_one(one) or 0.0 for one in simulated)

    return Figures(
        output_tokens_per_second=mean(lambda one: one.throughput.output_tokens_per_second),
        ttft_p50=mean(lambda one: one.queue.time_to_first_token.p50) + outside,
        ttft_p90=mean(lambda one: one.queue.time_to_first_token.p90) + outside,
        ttft_p99=mean(lambda one: one.queue.time_to_first_token.p99) + outside,
        itl_p50=mean(lambda one: one.queue.inter_token.p50),
        itl_p99=mean(lambda one: one.queue.inter_token.p99),
        prompt_tokens=simulated[0].requests.prompt_tokens,
    )


def outside(run: RunFile, records: Sequence[Sequence[Record]]) -> float:
    """Mean seconds between when a request was due and its first text that no engine had it. Raises ValueError if the
    engines tell of other requests than the client."""
    seen = [record.chunks[0] - (record.scheduled or 0.0) for record in run.records() if record.chunks]
    drawn = [seconds for of_one in records for seconds in first_tokens(of_one)]
    if len(seen) != len(drawn):
        raise ValueError(f"the client has {len(seen)} first tokens, and the engines' records {len(drawn)}")
    return max(0.0, statistics.fmean(seen) - statistics.fmean(drawn))


def measured(run: RunFile) -> Figures:
    """Raises CannotMeasure if a request failed."""
    records = list(run.records())
    if failed := [record for record in records if record.outcome is not Outcome.COMPLETED]:
        raise CannotMeasure(f"{len(failed)} of {len(records)} requests failed: {failed[0].kind} {failed[0].detail}")
    first = [record.chunks[0] - (record.scheduled or 0.0) for record in records if record.chunks]
    gaps = np.concatenate([np.diff(record.chunks) for record in records])
    seconds = max(record.ended or 0.0 for record in records) - min(record.scheduled or 0.0 for record in records)
    tokens = sum(record.output_tokens for record in records)
    ttft, itl = np.percentile(first, (50, 90, 99)), np.percentile(gaps, (50, 99))
    return Figures(
        output_tokens_per_second=tokens / seconds,
        ttft_p50=float(ttft[0]),
        ttft_p90=float(ttft[1]),
        ttft_p99=float(ttft[2]),
        itl_p50=float(itl[0]),
        itl_p99=float(itl[1]),
        prompt_tokens=sum(record.input_tokens or 0 for record in records),
    )


@contextlib.asynccontextmanager
async def recording(urls: Sequence[str]) -> AsyncIterator[list[list[Record]]]:
    """The step records of these engines, from now on until the block ends."""
    found: list[list[Record]] = [[] for _ in urls]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http, asyncio.TaskGroup() as group:
        tasks = [group.create_task(_read(http, url, into)) for url, into in zip(urls, found, strict=True)]
        try:
            yield found
        finally:
            for task in tasks:
                task.cancel()


async def _read(http: aiohttp.ClientSession, url: str, into: list[Record]) -> None:
    async with http.get(f"{url}/engine/steps") as reply:
        reply.raise_for_status()
        parser = EventParser()
        async for received in reply.content.iter_any():
            into += [item for event in parser.feed(received) if isinstance(item := decode_item(event), Record)]


class Planning:
    """Calibrates, predicts and measures one way after the other, each on engines of its own."""

    def __init__(self, options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> None:
        self._options, self._folder, self._say = options, folder, say
        self._bench = Bench(Console(file=io.StringIO()), Interrupt(), NO_KEYS)

    async def compare(self, way: Way) -> Compared:
        """Raises CannotMeasure and EngineStartError."""
        options = self._options
        os.environ["OMP_NUM_THREADS"] = str(way.threads)  # of each engine: it goes before what that would choose
        common = ["--model", options.model, "--max-model-len", "4096", "--kv-memory", KV_MEMORY]
        async with EngineProcess([*common, *way.arguments], lambda _: None) as engine:
            urls = await _engines(engine.url)
            info = (await _snapshot(urls[0])).engine
            rough = await self._calibrate(way, engine.url, urls, FIRST, ROUGHLY, FIRST * options.calibration / 2)
            speed = self._choose(way, rough.cost, info)
            known = await self._calibrate(way, engine.url, urls, speed, CALIBRATED, speed * options.calibration)
            trace = sessions(0, speed * options.seconds, self._folder / "measured.jsonl")
            foreseen = [predict(trace, way, cost, info, speed) for cost in known.costs()]
            unloaded = predict(trace, way, known.cost, info, UNLOADED).queue.time_to_first_token.p90 or 0.0
            told = predicted(foreseen, known.outside)
            self._say(f"{way.name}: speed {speed:g}, TTFT p90 {told.ttft_p90:.2f} s foreseen")
            figures = measured(await self._play(trace, engine.url, speed, f"{way.name}, measured"))
            full_seconds = speed * options.seconds * AT_ONCE_SHARE
            full_known = await self._calibrate(way, engine.url, urls, AT_ONCE, CALIBRATED, full_seconds)
            full_trace = sessions(0, full_seconds, self._folder / "full.jsonl")
            full_foreseen = [predict(full_trace, way, cost, info, AT_ONCE) for cost in full_known.costs()]
            full = measured(await self._play(full_trace, engine.url, AT_ONCE, f"{way.name}, measured at once"))
        bias, scatter = spread(known.cost, known.steps)
        shares = [use.most_busy_share or 0.0 for use in foreseen[0].roles.values()]
        return Compared(
            way.name, known.cost, len(known.steps), bias, scatter, known.outside, speed, foreseen[0].requests.total,
            max(shares), unloaded, told, figures, full_foreseen[0].requests.total,
            predicted(full_foreseen, full_known.outside).output_tokens_per_second, full.output_tokens_per_second,
        )  # fmt: skip

    async def _calibrate(
        self, way: Way, url: str, urls: Sequence[str], speed: float, first: int, trace_seconds: float
    ) -> Calibration:
        """What steps cost, of sessions that are not measured: those from number `first` on."""
        path = sessions(first, trace_seconds, self._folder / "calibration.jsonl")
        async with recording(urls) as records:
            run = await self._play(path, url, speed, f"{way.name}, calibration at speed {speed:g}")
            await asyncio.sleep(0.5)
        try:
            steps = tuple(step for of_one in records for step in timed(of_one))
            return Calibration(fitted(steps), steps, outside(run, records))
        except ValueError as error:
            raise CannotMeasure(f"{way.name}: {error}; give more --calibration") from None

    def _choose(self, way: Way, cost: StepCost, info: EngineInfo) -> float:
        """The highest speed at which requests wait no longer than `WAITING` says."""
        found = SPEEDS[0]
        for speed in SPEEDS:
            path = sessions(0, speed * self._options.seconds, self._folder / "measured.jsonl")
            calm, loaded = (
                predict(path, way, cost, info, at).queue.time_to_first_token.p90 or 0.0 for at in (UNLOADED, speed)
            )
            if loaded <= WAITING * calm:
                found = speed
        return found

    async def _play(self, trace: Path, url: str, speed: float, label: str) -> RunFile:
        self._say(label)
        await _clear_caches(url)  # as in a simulation
        settings = Settings(file=str(trace), url=url, speed=speed, timeout=600.0, probe=False)
        return await self._bench.measure(settings, self._folder / f"{label.replace(' ', '-')}.run", label)


async def _engines(url: str) -> list[str]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/engine/cluster") as reply:
        if reply.status == 404:
            return [url]
        reply.raise_for_status()
        return [f"{url}{worker['path']}" for worker in (await reply.json())["workers"]]


async def _clear_caches(url: str) -> None:
    """No run finds what one before it has computed."""
    async with aiohttp.ClientSession() as http, http.post(f"{url}/engine/cache/clear") as reply:
        reply.raise_for_status()


async def _snapshot(url: str) -> Snapshot:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/engine/snapshot") as reply:
        reply.raise_for_status()
        return decode_snapshot(await reply.read())


async def measure(options: argparse.Namespace, say: Callable[[str], None]) -> list[Compared]:
    found = []
    with tempfile.TemporaryDirectory(prefix="planning-") as folder:
        planning = Planning(options, Path(folder), say)
        for way in WAYS:
            found.append(one := await planning.compare(way))
            for figure, title in AIMED:
                told = _cell(getattr(one.predicted, figure), getattr(one.measured, figure), one.off(figure))
                say(f"{way.name}: {title} predicted, measured: {told}")
            told = _cell(one.full_predicted, one.full_measured, one.full_off)
            say(f"{way.name}: answer tokens/s, all at once, predicted, measured: {told}")
    return found


AIMED = (("output_tokens_per_second", "answer tokens/s"), ("ttft_p90", "TTFT p90 (s)"))
BESIDE = (
    ("ttft_p50", "TTFT p50 (s)"),
    ("ttft_p99", "TTFT p99 (s)"),
    ("itl_p50", "gap between tokens p50 (s)"),
    ("itl_p99", "gap between tokens p99 (s)"),
    ("prompt_tokens", "prompt tokens"),
)


def offs(found: Sequence[Compared]) -> list[float]:
    """Of TTFT p90, and of throughput where that is not given by what is asked for."""
    return [abs(off) for one in found for off in (one.off("ttft_p90"), one.full_off)]


def worst(found: Sequence[Compared]) -> float:
    return max(*offs(found), *(abs(one.off("output_tokens_per_second")) for one in found))


def report(found: Sequence[Compared], options: argparse.Namespace) -> str:
    """In Markdown."""
    here = machine()
    lines = [
        f"# What `simulate` predicts, and what is measured, {date.today()}",
        "",
        f"`python -m benchmarks.planning --model {options.model}` on {here['cpu']}, {here['cores']} cores, load "
        f"{here['load']:.1f} at the end. Sessions of `traces/chat500.jsonl`, {options.seconds:g} s of arrivals each.",
        "",
        "Each way to serve is calibrated by itself, all its engines at work together with the front and the client on "
        "the same two cores: other sessions of the trace (from number 320 on) are played, and a step's seconds are "
        f"fitted to what it did. A prediction is the mean of {SIMULATIONS} simulations, whose steps scatter as those "
        "did. To TTFT comes what these other sessions spent outside the engines, in the mean. Nothing else is measured "
        "first. The speed is the highest of some (or the lowest of all) at which, "
        f"by a first calibration at speed {FIRST:g}, the simulator says that TTFT p90 is at most {WAITING:g} times "
        f"that of the same requests at speed {UNLOADED:g}: requests wait, and no queue grows without end.",
        "",
        "| | " + " | ".join(one.way for one in found) + " |",
        "| --- |" + " ---: |" * len(found),
        _row("speed, requests", [f"{one.speed:g}, {one.requests}" for one in found]),
        _row("busiest engine, predicted", [f"{one.busy:.0%}" for one in found]),
        _row("outside the engines before a first token (s)", [f"{one.outside:.3f}" for one in found]),
        _row("TTFT p90 unloaded, predicted (s)", [f"{one.unloaded_ttft_p90:.2f}" for one in found]),
    ]
    for figure, title in (*AIMED, *BESIDE):
        cells = [_cell(getattr(one.predicted, figure), getattr(one.measured, figure), one.off(figure)) for one in found]
        lines.append(_row(f"{title}: predicted, measured", cells))
    cells = [_cell(one.full_predicted, one.full_measured, one.full_off) for one in found]
    lines.append(_row("requests nearly all at once", [str(one.full_requests) for one in found]))
    lines.append(_row("answer tokens/s then: predicted, measured", cells))
    lines += ["", "Fitted costs, in seconds of a step:", "", "| | " + " | ".join(one.way for one in found) + " |"]
    lines.append("| --- |" + " ---: |" * len(found))
    for field, title in (
        ("step", "a step"), ("token", "a computed token"), ("row", "a drawn token"), ("context", "a token of context"),
        ("attention", "a pair"),
    ):  # fmt: skip
        lines.append(_row(title, [f"{getattr(one.cost, field):.3g}" for one in found]))
    lines.append(_row("fitted to steps", [f"{one.steps:,}" for one in found]))
    lines.append(_row("all of them, fitted over taken", [f"{one.cost_bias:.3f}" for one in found]))
    lines.append(_row("scatter of one, of the mean", [f"{one.cost_scatter:.0%}" for one in found]))
    off = worst(found)
    verdict = "met" if off <= AIM else "**missed**"
    lines += [
        "",
        f"TTFT p90, and throughput with nearly all due at once, are off by {statistics.median(offs(found)):.1%} in the "
        f"median and {off:.1%} at most; aim {AIM:.0%}: {verdict}. At the speeds chosen throughput is what was asked, "
        "and right of itself.",
    ]
    return "\n".join(lines) + "\n"


def _row(title: str, cells: Sequence[str]) -> str:
    return f"| {title} | {' | '.join(cells)} |"


def _cell(told: float, was: float, off: float) -> str:
    digits = ",.0f" if was >= 1000 else ".1f" if was >= 10 else ".3f"
    return f"{told:{digits}}, {was:{digits}} ({off:+.1%})"


def main(argv: Sequence[str] | None = None) -> int:
    """Calibrate, predict, measure, and write what was asked for; 1 if the aim is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="default: %(default)s")
    parser.add_argument("--seconds", type=number(5, 3600), default=180.0, help="of arrivals, measured (default: 180)")
    parser.add_argument("--calibration", type=number(5, 3600), default=25.0, help="seconds of it (default: 25)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report here, in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    options = parser.parse_args(argv)
    check_file(parser, "--out", options.out)
    check_file(parser, "--json", options.json)
    console = Console(stderr=True)
    tell_if_busy(console)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    try:
        found = asyncio.run(measure(options, say))
    except (CannotMeasure, EngineStartError, aiohttp.ClientError) as error:
        say(f"benchmarks.planning: error: {error}")
        return 2
    told = report(found, options)
    print(told, end="")
    if options.out is not None:
        options.out.write_text(told)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return int(worst(found) > AIM)


if __name__ == "__main__":
    sys.exit(main())
