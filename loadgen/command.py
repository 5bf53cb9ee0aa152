"""What every command that plays a trace shares: Ctrl-C, expected errors as one line, where output goes."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field

from loadgen.console import stderr as stderr
from loadgen.console import stdout as stdout
from loadgen.engine_process import EngineStartError
from loadgen.engine_watch import EngineError
from loadgen.options import EXIT_BAD_INPUT, EXIT_FAILED_TURNS, EXIT_INTERRUPTED, EXIT_NO_SERVER
from loadgen.outcome import Outcome
from loadgen.results.output import OutputError
from loadgen.results.run_file import BY_HAND, ResultError, RunFile
from loadgen.server import ServerError
from loadgen.text.tokenizer import TokenizerError
from loadgen.traces.model import TraceError
from loadgen.workers import WorkerError

_BAD_INPUT = (TraceError, OutputError, ResultError)
_NO_SERVER = (ServerError, EngineError, TokenizerError, EngineStartError, WorkerError)


@dataclass(slots=True)
class Interrupt:
    """Ctrl-C while requests run ends the run with a report; before that, or again, it just ends loadgen."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    measuring: bool = False
    again: bool = False

    @contextlib.contextmanager
    def reported(self) -> Iterator[asyncio.Event]:
        """While this lasts, Ctrl-C sets the event, and whoever measures ends by it."""
        self.measuring = True
        try:
            yield self.stop
        finally:
            self.measuring = False

    @contextlib.contextmanager
    def keeping(self, measured: Collection[object]) -> Iterator[list[BaseException]]:
        """Once anything is measured, what ends this block early is put into the list, to be raised after the report.

        Before that, and when Ctrl-C comes again, it is raised at once.
        """
        problems: list[BaseException] = []
        try:
            yield problems
        except (*_BAD_INPUT, *_NO_SERVER, asyncio.CancelledError) as problem:
            if not measured or self.again:
                raise
            problems.append(problem)


def exit_code(run: RunFile) -> int:
    """Of a command whose run this is."""
    stopped_by = None if run.end is None else run.end.stopped_by
    if stopped_by == BY_HAND:
        return EXIT_INTERRUPTED
    outcomes = Counter(record.outcome for record in run.records())
    failed = any(outcome.failed for outcome in outcomes)
    reached = outcomes.total() - outcomes[Outcome.NOT_REACHED]
    unfinished = stopped_by is None and reached < run.header.turns
    return EXIT_FAILED_TURNS if failed or unfinished else 0


def _allow_open_files() -> None:
    """As many open connections as the system lets this process have: a request each, without a limit of ours."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _with_signals(work: Callable[[Interrupt], Awaitable[int]]) -> int:
    interrupt = Interrupt()
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work(interrupt))

    def on_signal() -> None:
        interrupt.again = interrupt.stop.is_set()
        if interrupt.again or not interrupt.measuring:
            task.cancel()
        interrupt.stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup asks to go on
            loop.add_signal_handler(number, on_signal)
    try:
        return await task
    except asyncio.CancelledError:
        print("loadgen: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def execute(work: Callable[[Interrupt], Awaitable[int]]) -> int:
    """Run a command's work; every expected error is one line on stderr and an exit code."""
    try:
        _allow_open_files()
        return asyncio.run(_with_signals(work))
    except _BAD_INPUT as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except _NO_SERVER as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_NO_SERVER
