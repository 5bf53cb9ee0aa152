"""`loadgen sweep`: the runs of all loads, those that the search asks for, and their report."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.command import Interrupt, exit_code, stderr, stdout
from loadgen.engine_process import EngineStartError
from loadgen.engine_watch import EngineError
from loadgen.experiments.knee import next_load
from loadgen.experiments.measuring import Bench, came_to_its_end, run_folder
from loadgen.experiments.sweep import (
    Over,
    Point,
    find,
    load_of,
    path_of,
    read_point,
    rounded,
    settings_at,
    sweep_document,
)
from loadgen.experiments.sweep_report import draw, sentences, sweep_table
from loadgen.options import EXIT_INTERRUPTED
from loadgen.results.output import check_writable, write_json
from loadgen.results.report import WIDE, WIDEST_PLOT, rich_table
from loadgen.results.run_file import ResultError, RunFile
from loadgen.server import ServerError
from loadgen.settings import Settings
from loadgen.text.tokenizer import TokenizerError
from loadgen.workers import WorkerError

PRECISION = 0.1  # of the load with the most goodput
FURTHEST = 64  # the search goes no further than so many times beyond the loads that were asked for


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: these loads, then at most `search` more to find the most goodput."""

    base: Settings
    over: Over
    loads: tuple[float, ...]
    search: int


async def sweep(plan: Plan, arguments: argparse.Namespace, interrupt: Interrupt) -> int:
    """Measure what the folder does not hold yet, and report what there is, whatever ended it early."""
    if arguments.json is not None:
        check_writable("--json", arguments.json)
    bench = Bench(stderr(), interrupt, arguments.api_key)
    with run_folder(arguments.out) as folder:
        runs = held(plan, folder)
        points = {load: read_point(load, run, plan.over) for load, run in runs.items()}
        problem = await _measure(plan, folder, bench, interrupt, runs, points)
        return _report(plan, runs, points, problem, bench.stopped, arguments)


def held(plan: Plan, folder: Path) -> dict[float, RunFile]:
    """The runs of this very sweep that the folder holds whole. Raises `ResultError` for runs of another one."""
    found = {}
    for path in sorted(folder.glob(f"{plan.over}-*.jsonl")):
        if (load := load_of(path, plan.over)) is None:
            continue
        run = RunFile.read(path)
        asked, had = settings_at(plan.base, plan.over, load), run.header.settings
        if differing := [name for name in asked.__struct_fields__ if getattr(asked, name) != getattr(had, name)]:
            raise ResultError(
                f"{path}: is of a run with other settings ({', '.join(differing)}); name another folder with --out"
            )
        if came_to_its_end(run):
            found[load] = run
    return found


async def _measure(
    plan: Plan, folder: Path, bench: Bench, interrupt: Interrupt, runs: dict[float, RunFile], points: dict[float, Point]
) -> Exception | None:
    """Add to `runs` and `points`; what ended it early, if there are any. Else that is raised."""
    console = stderr()
    if points:
        console.print(f"{len(points)} loads are measured already", highlight=False)
    try:
        while not bench.stopped and (load := _next(plan, points)) is not None:
            label = f"{plan.over} {load:g}"
            run = await bench.measure(settings_at(plan.base, plan.over, load), path_of(folder, plan.over, load), label)
            if not came_to_its_end(run):
                break
            runs[load], points[load] = run, read_point(load, run, plan.over)
    except (ServerError, EngineError, EngineStartError, TokenizerError, WorkerError) as error:
        if not points:
            raise
        return error
    except asyncio.CancelledError:  # Ctrl-C between two runs
        if interrupt.again or not points:
            raise
    return None


def _next(plan: Plan, points: dict[float, Point]) -> float | None:
    """The next load that was asked for, or that the search wants; None: all is measured."""
    if left := [load for load in plan.loads if load not in points]:
        return left[0]
    goodputs = [point.goodput for point in points.values() if point.goodput is not None]
    if not goodputs or len(points) >= len(plan.loads) + plan.search:
        return None
    least, most = min(plan.loads) / FURTHEST, max(plan.loads) * FURTHEST
    wanted = next_load(goodputs, 1 if plan.over.whole else least, most, PRECISION, plan.over.whole)
    load = None if wanted is None else rounded(wanted, plan.over)
    return None if load in points else load


def _conditions(plan: Plan) -> str:
    if plan.base.url is None:
        return "a fresh engine for each load, its prefix cache empty"
    return "one server for all loads; a paged-engine was told to forget its prefix cache before each"


def _report(
    plan: Plan,
    runs: dict[float, RunFile],
    points: dict[float, Point],
    problem: Exception | None,
    stopped: bool,
    arguments: argparse.Namespace,
) -> int:
    """Table, plots, sentences and the JSON that was asked for, also when nobody reads the table to its end."""
    found = find(list(points.values()))
    out = stdout()
    try:
        if stopped:
            out.print("Interrupted: these are the loads that were measured whole.")
        out.print(rich_table(sweep_table(found, plan.over, narrow=out.width < WIDE)))
        if not arguments.no_plots:
            for picture in draw(found, plan.over, min(out.width, WIDEST_PLOT), out.is_terminal):
                out.print(picture)
        for line in (*_warnings(runs, points), *sentences(found, plan.over), f"Conditions: {_conditions(plan)}."):
            out.print(line, markup=False, highlight=False)
    finally:
        if arguments.json is not None:
            write_json("--json", arguments.json, sweep_document(found, plan.over, _conditions(plan)))
    if problem is not None:
        raise problem
    return EXIT_INTERRUPTED if stopped else max(map(exit_code, runs.values()))


def _warnings(runs: dict[float, RunFile], points: dict[float, Point]) -> list[str]:
    """Of each run, and of those for which the trace was too short."""
    told = []
    for load, run in sorted(runs.items()):
        told += [f"Warning: load {load:g}: {warning}" for warning in points[load].document["warnings"]]
        if run.header.settings.until and run.end is not None and run.end.stopped_by is None:
            ends = ", ".join(run.header.settings.until)
            told.append(f"Warning: load {load:g}: the trace had ended before {ends}; a longer one tells more.")
    return told


def with_end(base: Settings, seconds: str | None, requests: int | None) -> Settings:
    """The settings of one load's run: it ends after so long, or so many requests."""
    rules = [f"time={seconds}"] if seconds is not None else []
    rules += [f"requests={requests}"] if requests is not None else []
    return msgspec.structs.replace(base, until=(*base.until, *rules))
