"""`loadgen compare`: the runs of both sides, and their report."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from loadgen.command import Interrupt, exit_code, stderr, stdout
from loadgen.experiments.compare import Repeat, comparison, interleaved, read_repeat, tail_verdicts, verdicts
from loadgen.experiments.measuring import Bench, came_to_its_end, run_folder
from loadgen.experiments.sides import Side, one_server
from loadgen.experiments.tables import explanation, findings, verdict_table
from loadgen.experiments.tails import plain_verdict, split_of, tail_table
from loadgen.keys import Keys
from loadgen.options import EXIT_INTERRUPTED
from loadgen.results.document import Document, document
from loadgen.results.output import OutputError, check_writable, write_json
from loadgen.results.report import fitting, print_notes, print_report, print_side_by_side
from loadgen.results.run_file import RunFile

Sides = tuple[Side, Side]


async def compare(sides: Sides, arguments: argparse.Namespace, interrupt: Interrupt) -> int:
    """Measure both sides in turn as often as asked, and report what is whole, whatever ended it early."""
    if arguments.json is not None:
        check_writable("--json", arguments.json, [Path(sides[0].settings.file)])
    bench = Bench(stderr(), interrupt, Keys.of(arguments))
    repeats: int = arguments.repeat
    with run_folder(arguments.out) as folder:
        if there := next((path for path in folder.glob("[ab]-*.jsonl")), None):
            raise OutputError(f"--out {folder}: {there.name} is there already; name another folder")
        warm = {side.settings.url for side in sides if side.settings.url and not await bench.forgets(side.settings.url)}
        runs: list[tuple[int, RunFile]] = []  # which side each is of
        shared = sides[0].settings if _is_started_once(sides) else None
        with bench.keeping(runs) as problems:
            async with bench.sharing(shared):
                if repeats > 1:
                    await _warm_up(sides, folder, bench, warm)
                await _measure(sides, repeats, folder, bench, runs)
        _report(sides, runs, conditions_of(sides, warm, repeats, bench.kept), bench.stopped, arguments)
        if problems:
            raise problems[0]
        return EXIT_INTERRUPTED if bench.stopped else max(exit_code(run) for _, run in runs)


def _is_started_once(sides: Sides) -> bool:
    """Whether one cluster is started for both sides, and switched between them."""
    return one_server(*sides) and sides[0].settings.url is None


async def _measure(sides: Sides, repeats: int, folder: Path, bench: Bench, runs: list[tuple[int, RunFile]]) -> None:
    """Add to `runs` until all are measured, or one ends early."""

    async def measure(side: Side, repeat: int, path: Path) -> RunFile:
        label = side.name if repeats == 1 else f"{side.name} {repeat}/{repeats}"
        return await bench.measure(side.settings, path, label)

    async for index, run in interleaved(sides, repeats, folder, measure):
        runs.append((index, run))
        if bench.stopped or not came_to_its_end(run):
            break


async def _warm_up(sides: Sides, folder: Path, bench: Bench, warm: Collection[str]) -> None:
    """Play once, uncounted, to each server that does not forget its cache: else the first run alone finds it empty."""
    path = folder / "warm-up.jsonl"
    for url in sorted(warm):
        side = next(side for side in sides if side.settings.url == url)
        run = await bench.measure(side.settings, path, f"{side.name}, to warm the cache")
        path.unlink()
        if not came_to_its_end(run):
            raise asyncio.CancelledError


def conditions_of(sides: Sides, warm: Collection[str], repeats: int, kept: Collection[str]) -> str:
    """What a reader must know of how the sides were measured. Servers that are `kept` did not forget their cache before
    each run; those that are `warm` did not when they were asked first."""
    urls = {side.settings.url for side in sides}
    told = []
    if (sides[0].pools is None) != (sides[1].pools is None):
        alone = next(side for side in sides if side.pools is None)
        told.append(
            f"resources are not equal: every worker of a cluster has KV memory of its own, {alone.name} has one"
        )
    if _is_started_once(sides):
        emptied = "were not emptied before each run, though it was asked to" if kept else "were emptied before each run"
        told.append(f"one cluster for both sides, switched while it ran; its prefix caches {emptied}")
    elif None in urls:
        each = "side" if repeats == 1 else "side and repeat"
        told.append(f"a fresh engine for each {each}, its prefix cache empty")
    if urls - {None} - set(warm) - set(kept):
        told.append("the server's prefix cache was emptied before each run")
    if (urls & set(kept)) - set(warm):
        told.append("a server's prefix cache was not emptied before each run, though it was asked to")
    if warm and repeats > 1:
        told.append("the server's prefix cache was as the run before left it; a first run was not counted")
    elif warm and len(urls) == 1:
        told.append("one server for both sides: the second found the prefix cache as the first left it")
    elif warm:
        told.append("a server's prefix cache was as it was before")
    if repeats > 1:
        told.append("the sides took turns")
    return "; ".join(told)


def _report(
    sides: Sides, runs: Sequence[tuple[int, RunFile]], conditions: str, stopped: bool, arguments: argparse.Namespace
) -> None:
    """Verdicts, tables and the JSON that was asked for, also when nobody reads the tables to their end."""
    names = (sides[0].name, sides[1].name)
    pools = any(side.pools is not None for side in sides)
    a, b = ([run for index, run in runs if index == side] for side in (0, 1))
    pairs = list(zip(a, b, strict=False))
    whole = [pair for pair in pairs if all(map(came_to_its_end, pair))]
    repeats = [read_repeat(*pair) for pair in whole or pairs[:1]]
    found = comparison(repeats, conditions, None if repeats else document([a[0]]))
    try:
        if repeats:
            _print(repeats, found, names, stdout(), tails=pools or split_of(found["a"]) is not None)
            side, last = runs[-1]
            if whole and not came_to_its_end(last):  # it is in no figure
                print_notes(document([last]), stdout(), f"{names[side]}, the last run: ")
        else:
            _print_alone(a[0], names[0], stopped, not arguments.no_plots)
    finally:
        if arguments.json is not None:
            write_json("--json", arguments.json, found)


def _by_side(repeats: Sequence[Repeat]) -> tuple[list[Document], list[Document]]:
    return [repeat.a for repeat in repeats], [repeat.b for repeat in repeats]


def _print_alone(run: RunFile, name: str, stopped: bool, plots: bool) -> None:
    """The report of the one run that there is."""
    out = stdout()
    out.print(f"{'Interrupted: only' if stopped else 'Only'} {name} was run.", markup=False, highlight=False)
    print_report([run], out, plots)


def _print(repeats: Sequence[Repeat], found: Document, names: tuple[str, str], out: Console, *, tails: bool) -> None:
    told = verdicts(repeats)
    print_side_by_side([found["a"], found["b"]], names, out, ratio=True)
    for table in fitting(verdict_table(told), out, least_names=9):
        out.print(table)
    out.print(explanation(told, names, len(repeats)), markup=False, highlight=False)
    for line in findings(told, names):
        out.print(line, markup=False, highlight=False)
    if tails:
        of_tails = tail_verdicts(repeats)
        for table in fitting(tail_table(of_tails, split_of(found["a"])), out, least_names=9):
            out.print(table)
        failed = tuple(sum(side["summary"]["failed"] for side in sides) for sides in _by_side(repeats))
        out.print(plain_verdict(of_tails, names, (failed[0], failed[1])), markup=False, highlight=False)
    out.print(f"Conditions: {found['conditions']}.", markup=False, highlight=False)
