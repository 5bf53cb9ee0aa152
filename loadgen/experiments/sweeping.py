"""`loadgen sweep`: the runs of all loads, those that the search asks for, and their report."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.command import Interrupt, exit_code, stderr, stdout
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
from loadgen.keys import Keys
from loadgen.options import EXIT_INTERRUPTED
from loadgen.results.document import document
from loadgen.results.output import check_writable, write_json
from loadgen.results.report import WIDE, WIDEST_PLOT, print_notes, rich_table
from loadgen.results.run_file import ResultError, RunFile
from loadgen.settings import Settings

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
        check_writable("--json", arguments.json, [Path(plan.base.file)])
    bench = Bench(stderr(), interrupt, Keys.of(arguments))
    with run_folder(arguments.out) as folder:
        runs = held(plan, folder)
        points = {load: read_point(load, run, plan.over) for load, run in runs.items()}
        cut = None
        with bench.keeping(points) as problems:
            cut = await _measure(plan, folder, bench, runs, points)
        _report(plan, runs, points, cut, bench.stopped, arguments)
        if problems:
            raise problems[0]
        codes = [exit_code(run) for run in (*runs.values(), cut) if run is not None]
        return EXIT_INTERRUPTED if bench.stopped else max(codes)


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
    plan: Plan, folder: Path, bench: Bench, runs: dict[float, RunFile], points: dict[float, Point]
) -> RunFile | None:
    """Add to `runs` and `points` until all is measured, or a run ends early: that one is in neither."""
    if points:
        stderr().print(f"{len(points)} loads are measured already", highlight=False)
    while not bench.stopped and (load := _next(plan, points)) is not None:
        settings, path = settings_at(plan.base, plan.over, load), path_of(folder, plan.over, load)
        run = await bench.measure(settings, path, f"{plan.over} {load:g}")
        if not came_to_its_end(run):
            return run
        runs[load], points[load] = run, read_point(load, run, plan.over)
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
    cut: RunFile | None,
    stopped: bool,
    arguments: argparse.Namespace,
) -> None:
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
        if cut is not None:
            print_notes(document([cut]), out, f"{cut.header.label}, in no figure: ")
    finally:
        if arguments.json is not None:
            write_json("--json", arguments.json, sweep_document(found, plan.over, _conditions(plan)))


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
