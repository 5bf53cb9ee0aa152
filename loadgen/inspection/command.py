"""`loadgen inspect`, once its options are read: files, Ctrl-C, progress, where the figures go."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from loadgen.console import stderr, stdout
from loadgen.inspection.document import document
from loadgen.inspection.inspecting import Inspection, Reading, inspect_trace
from loadgen.inspection.progress import ReadingProgress
from loadgen.inspection.report import print_report
from loadgen.inspection.statistics import CONTEXTS
from loadgen.options import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from loadgen.results.output import OutputError, check_writable, write_json
from loadgen.traces.formats import Format, TimeUnit, open_trace
from loadgen.traces.model import TraceError


class _Interrupt:
    """Ctrl-C asks the reading to stop; once more ends the command."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        before = signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def run(options: argparse.Namespace) -> int:
    """Read every file, then tell of all of them; returns the exit code."""
    try:
        if options.json is not None:
            check_writable("--json", options.json, options.files)
        interrupt = _Interrupt()
        with interrupt.heard():
            inspections = _inspect_all(options, interrupt)
        if interrupt.asked:
            print(
                f"Interrupted: what was read so far{_unread(len(options.files) - len(inspections))}.", file=sys.stderr
            )
        if options.json is not None:
            write_json("--json", options.json, document(inspections, interrupt.asked))
        if inspections:
            print_report(inspections, stdout(), not options.no_plots)
        return EXIT_INTERRUPTED if interrupt.asked else 0
    except (TraceError, OutputError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _unread(files: int) -> str:
    if not files:
        return ""
    return ", and 1 more file was not read" if files == 1 else f", and {files} more files were not read"


def _inspect_all(options: argparse.Namespace, interrupt: _Interrupt) -> list[Inspection]:
    """Every file, as far as nobody interrupts. Raises `TraceError`."""
    inspections: list[Inspection] = []
    console = stderr()
    for path in options.files:
        if interrupt.asked:
            break
        trace = open_trace(
            path,
            options.format and Format(options.format),
            skip_bad=options.skip_bad,
            block_size=options.block_size,
            time_unit=options.time_unit and TimeUnit(options.time_unit),
        )
        with ReadingProgress(path.name, console) as progress:

            def watch(reading: Reading, progress: ReadingProgress = progress) -> bool:
                progress.update(reading)
                return not interrupt.asked

            inspections.append(
                inspect_trace(
                    trace,
                    watch,
                    sessions=options.sessions,
                    engine_block_sizes=options.engine_block_size,
                    contexts=options.contexts or CONTEXTS,
                )
            )
    return inspections
