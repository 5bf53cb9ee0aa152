"""`loadgen replay` and `loadgen compare`: an engine if none is given, the runs, the report, the JSON."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from loadgen.cli import ENGINE_MODEL, EXIT_BAD_INPUT, EXIT_FAILED_TURNS, EXIT_NO_SERVER
from loadgen.compare import SIDES, ratios
from loadgen.engine_process import EngineProcess, EngineStartError
from loadgen.engine_watch import EngineError
from loadgen.pace import Pace
from loadgen.replay import Options, RunResult, ServerError, replay
from loadgen.report import print_comparison, print_report
from loadgen.steer import listen, obey
from loadgen.trace import Trace, TraceError, read_trace

EXIT_INTERRUPTED = 130
WITHOUT_A_TERMINAL = 100  # columns


@dataclass(slots=True)
class Interrupt:
    """Ctrl-C while requests run ends the run with a report; before that, or again, it just ends loadgen."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    measuring: bool = False
    again: bool = False

    @contextlib.contextmanager
    def reported(self) -> Iterator[asyncio.Event]:
        self.measuring = True
        try:
            yield self.stop
        finally:
            self.measuring = False


class OutputError(Exception):
    """--json names a place that cannot be written."""


def check_writable(path: Path) -> None:
    """Fail before a run, not after it. Raises `OutputError`."""
    try:
        if path.is_dir():
            raise OutputError(f"--json {path}: is a folder; name a file")
        if not path.parent.is_dir():
            raise OutputError(f"--json {path}: there is no folder {path.parent}")
        if _in_place(path):
            if not os.access(path, os.W_OK):
                raise OutputError(f"--json {path}: no permission to write")
        else:
            partial = _partial(path)
            partial.touch()
            partial.unlink()
    except OSError as error:
        raise OutputError(f"--json {path}: cannot be written: {error.strerror or error}") from None


def _in_place(path: Path) -> bool:
    """Whether it is a pipe or /dev/stdout; a file is replaced whole."""
    return path.exists() and not path.is_file()


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write the document whole or not at all. Raises `OutputError`."""
    data = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    try:
        if _in_place(path):
            path.write_bytes(data)
            return
        partial = _partial(path)
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"--json {path}: cannot be written: {error.strerror or error}") from None


@contextlib.contextmanager
def _json_too(arguments: argparse.Namespace, document: dict[str, Any]) -> Iterator[None]:
    """Write what --json asks for after the report, also when nobody reads that to its end."""
    try:
        yield
    finally:
        if arguments.json is not None:
            write_json(arguments.json, document)


def _options(arguments: argparse.Namespace, mode: str | None, alloc: str | None) -> Options:
    own = arguments.url is None
    return Options(
        file=arguments.file,
        sessions=arguments.sessions,
        model=None if own else arguments.model,
        speed=arguments.speed,
        concurrency=arguments.concurrency,
        rate=arguments.rate,
        mode=mode,
        alloc=alloc,
        seed=arguments.seed,
        timeout=arguments.timeout,
        engine_args=("--model", arguments.model or ENGINE_MODEL, *arguments.engine_args) if own else (),
        api_key=arguments.api_key,
    )


@contextlib.asynccontextmanager
async def _server(
    arguments: argparse.Namespace, options: Options, console: Console
) -> AsyncIterator[tuple[str, EngineProcess | None]]:
    """The given address, or that of an engine that lives as long as this context."""
    if arguments.url is not None:
        yield arguments.url, None
        return

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    async with EngineProcess(options.engine_args, say) as engine:
        yield engine.url, engine


async def _run(
    trace: Trace,
    options: Options,
    server: tuple[str, EngineProcess | None],
    console: Console,
    interrupt: Interrupt,
    label: str = "replay",
    pace: Pace | None = None,
) -> tuple[RunResult, ServerError | None]:
    """One run, and why it ended early if its own engine did: the rest of the trace has nobody to answer it."""
    url, engine = server
    death = asyncio.create_task(engine.ended()) if engine is not None else None
    with interrupt.reported() as stop:
        if death is not None:
            death.add_done_callback(lambda task: None if task.cancelled() else stop.set())
        try:
            result = await replay(trace, options, url, engine, console, stop, label, pace)
        finally:
            if death is not None and not death.done():
                death.cancel()
    problem = ServerError(death.result()) if death is not None and death.done() and not death.cancelled() else None
    return result, problem


async def _replay(arguments: argparse.Namespace, trace: Trace, interrupt: Interrupt) -> int:
    options = _options(arguments, arguments.mode, arguments.alloc)
    console, out = Console(stderr=True), _stdout()
    pace = Pace(options.speed)
    if arguments.steer:
        listen(lambda line: obey(line, pace, console))
    async with _server(arguments, options, console) as server:
        result, problem = await _run(trace, options, server, console, interrupt, pace=pace)
    with _json_too(arguments, result.document()):
        print_report(result, out, not arguments.no_plots)
    if problem is not None:
        raise problem
    return _exit_code(result)


async def _compare(arguments: argparse.Namespace, trace: Trace, interrupt: Interrupt) -> int:
    console, out = Console(stderr=True), _stdout()
    results: list[RunResult] = []
    problem: ServerError | EngineError | EngineStartError | None = None
    names = [f"{mode}+{alloc}" for mode, alloc in SIDES]
    for name, (mode, alloc) in zip(names, SIDES, strict=True):
        if interrupt.stop.is_set():
            break
        options = _options(arguments, mode, alloc)
        try:
            async with _server(arguments, options, console) as server:
                result, problem = await _run(trace, options, server, console, interrupt, name)
                results.append(result)
        except (ServerError, EngineError, EngineStartError) as error:
            problem = error
        except asyncio.CancelledError:
            if interrupt.again or not results:
                raise
        if problem is not None and not results:
            raise problem
    cold = "a fresh engine for each side, its prefix cache empty"
    warm = "one server for both sides: the second found the prefix cache as the first left it"
    conditions = cold if arguments.url is None else warm
    documents = [result.document() for result in results]
    a, b = [*documents, None][:2]
    ratio = ratios(a, b) if b is not None else {}
    with _json_too(arguments, {"a": a, "b": b, "ratio": ratio, "conditions": conditions}):
        if b is not None:
            print_comparison(results[0], results[1], ratio, (names[0], names[1]), out)
            out.print(f"Ratio: {names[1]} / {names[0]}. Conditions: {conditions}.", highlight=False)
        else:
            out.print(f"{'Interrupted: only' if problem is None else 'Only'} {names[0]} was run.")
            print_report(results[0], out, not arguments.no_plots)
    if problem is not None:
        raise problem
    return EXIT_INTERRUPTED if interrupt.stop.is_set() else max(_exit_code(result) for result in results)


def _allow_open_files() -> None:
    """As many open connections as the system lets this process have: a request each, without a limit of ours."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Report(Console):
    """Standard output. The library would end the program with exit code 1 when its reader has gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _stdout() -> Console:
    return _Report() if sys.stdout.isatty() else _Report(width=WITHOUT_A_TERMINAL)


def _exit_code(result: RunResult) -> int:
    if result.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED_TURNS if result.summary["failed"] else 0


async def _with_signals(arguments: argparse.Namespace, trace: Trace) -> int:
    interrupt = Interrupt()
    loop = asyncio.get_running_loop()
    command = _compare if arguments.command == "compare" else _replay
    task = asyncio.create_task(command(arguments, trace, interrupt))

    def on_signal() -> None:
        interrupt.again = interrupt.stop.is_set()
        if interrupt.again or not interrupt.measuring:
            task.cancel()
        interrupt.stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    try:
        return await task
    except asyncio.CancelledError:
        print("loadgen: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def run(arguments: argparse.Namespace) -> int:
    """Check the input, then run; every expected error is one line on stderr and an exit code."""
    try:
        if arguments.json is not None:
            check_writable(arguments.json)
        trace = read_trace(Path(arguments.file))
        if arguments.sessions is not None and arguments.sessions > len(trace.sessions):
            raise TraceError(f"--sessions {arguments.sessions}: {arguments.file} has {len(trace.sessions)} sessions")
        _allow_open_files()
        return asyncio.run(_with_signals(arguments, trace))
    except (TraceError, OutputError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (ServerError, EngineError, EngineStartError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_NO_SERVER
