"""`loadgen replay` and `loadgen resume`: one run or several of the same, and their report."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from loadgen.command import Interrupt, exit_code, stderr, stdout
from loadgen.keys import Keys
from loadgen.perform import RunBroken, perform
from loadgen.results.document import measure, merged
from loadgen.results.output import OutputError, check_writable, temporary_folder, write_json
from loadgen.results.report import print_measured
from loadgen.results.run_file import BY_HAND, ENGINE_ENDED, ResultError, RunFile
from loadgen.resumption import Past
from loadgen.server import ServerError
from loadgen.settings import Settings
from loadgen.steer import listen, obey
from loadgen.target import Steering, Target, open_target


@contextlib.contextmanager
def _places(out: Path | None, repeats: int) -> Iterator[list[Path]]:
    """Where the runs are kept: at --out, with a number if there are several, or only until the report is made."""
    if out is None:
        with temporary_folder() as folder:
            yield [folder / f"run-{number}.jsonl" for number in range(1, repeats + 1)]
        return
    if repeats == 1:
        yield [out]
        return
    yield [out.with_name(f"{out.stem}-{number}{out.suffix}") for number in range(1, repeats + 1)]


def check_outputs(trace: Path, out: Path | None, repeats: int, json: Path | None) -> None:
    """Find before the run what could not be written after it. Raises `OutputError` or `ResultError`."""
    with _places(out, repeats) as places:
        if json is not None:
            check_writable("--json", json, [trace], places)
        for place in places if out is not None else ():
            check_writable("--out", place)
            if place.is_file():
                raise ResultError(f"--out {place}: is there already; `loadgen resume {place}` goes on with it")
            if place.exists():
                raise OutputError(f"--out {place}: is no regular file; the report reads what is written there")


async def replay(settings: Settings, arguments: argparse.Namespace, interrupt: Interrupt) -> int:
    """Play the trace as often as asked, and report. `arguments` say where figures go."""
    check_outputs(Path(settings.file), arguments.out, arguments.repeat, arguments.json)
    console = stderr()
    steering = Steering(interrupt.stop)
    if arguments.steer:
        listen(lambda line: obey(line, steering.set_speed, console))
    runs: list[RunFile] = []
    with _places(arguments.out, arguments.repeat) as places:
        with interrupt.keeping(runs) as problems:
            if settings.url is not None or arguments.repeat == 1:
                async with open_target(settings, console, Keys.of(arguments)) as target:
                    await _play_all(settings, target, places, runs, console, steering, interrupt)
            else:  # an engine of its own for each: none finds what the one before has cached
                for place in places:
                    async with open_target(settings, console, Keys.of(arguments)) as target:
                        await _play_all(settings, target, [place], runs, console, steering, interrupt, len(runs))
                    if _ended_early(runs):
                        break
        return _report(runs, arguments, problems)


async def _play_all(
    settings: Settings,
    target: Target,
    places: Sequence[Path],
    runs: list[RunFile],
    console: Console,
    steering: Steering,
    interrupt: Interrupt,
    before: int = 0,
) -> None:
    """Play into each place in turn, until one ends early. Raises as `perform`, but keeps what is broken in `runs`."""
    for number, place in enumerate(places, before + 1):
        label = "replay" if len(places) == 1 and not before else f"replay {number}"
        try:
            with interrupt.reported():
                runs.append(await perform(settings, target, place, console, steering, label))
        except RunBroken as broken:
            runs.append(broken.run)
            raise broken.problem from None
        if _ended_early(runs):
            break


def _ended_early(runs: Sequence[RunFile]) -> bool:
    end = runs[-1].end
    return end is not None and end.stopped_by in (BY_HAND, ENGINE_ENDED)


async def resume(place: Path, arguments: argparse.Namespace, interrupt: Interrupt) -> int:
    """Go on with a run that was interrupted, as its file says it was asked for. Raises `ResultError`."""
    past = Past.read(place)
    settings = past.run.header.settings
    if arguments.url is not None:
        settings = msgspec.structs.replace(settings, url=str(arguments.url), engine_args=())
    if arguments.metrics_url is not None:
        settings = msgspec.structs.replace(settings, metrics_url=arguments.metrics_url)
    keys = Keys.of(arguments).as_before(settings)
    settings = msgspec.structs.replace(settings, ca_file=keys.ca_file, insecure=keys.insecure)
    try:
        keys.client.tls  # noqa: B018  # of a file that the run was begun with
    except OSError as error:
        raise ResultError(f"{place}: line 1: settings.ca_file {keys.ca_file}: cannot be read: {error}") from None
    if arguments.json is not None:
        check_writable("--json", arguments.json, [place, Path(settings.file)])
    console = stderr()
    runs: list[RunFile] = []
    with interrupt.keeping(runs) as problems:
        async with open_target(settings, console, keys) as target:
            with interrupt.reported() as stop:
                try:
                    runs.append(await perform(settings, target, place, console, Steering(stop), "resume", past=past))
                except RunBroken as broken:
                    runs.append(broken.run)
                    raise broken.problem from None
    return _report(runs, arguments, problems)


def _report(runs: Sequence[RunFile], arguments: argparse.Namespace, problems: Sequence[BaseException]) -> int:
    """Tables, plots, and the JSON that was asked for, also when nobody reads the tables to their end.

    Raises the first of the problems, which ended it early.
    """
    measured = [measure(run) for run in runs]
    try:
        print_measured(measured, stdout(), plots=not arguments.no_plots)
    finally:
        if arguments.json is not None:
            write_json("--json", arguments.json, merged(measured))
    if problems:
        raise problems[0]
    last = runs[-1].end
    if last is not None and last.stopped_by == ENGINE_ENDED:
        raise ServerError(last.notes[-1])
    return max(exit_code(run) for run in runs)
