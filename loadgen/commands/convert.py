"""`loadgen convert`: write a trace in another format."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.options import (
    EXIT_BAD_INPUT,
    FORMATS,
    UNITS,
    Commands,
    OptionAdder,
    positive_float,
    positive_int,
    yes_or_no,
)

if TYPE_CHECKING:
    from loadgen.traces.convert import Converted
    from loadgen.traces.formats import TraceFile

REPORTED_EACH = 0.5  # seconds


def add_parser(commands: Commands) -> None:
    """Its options."""
    parser = commands.add_parser(
        "convert",
        help="write a trace in another format",
        description="Write a trace in another format. What that cannot hold is refused, or named at the end.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("source", type=Path, metavar="IN", help="trace to read, plain or gzip")
    parser.add_argument("target", type=Path, metavar="OUT", help="file to write; compressed if it ends with .gz")
    parser.add_argument("--to", required=True, choices=FORMATS, metavar="FORMAT", help=f"one of {', '.join(FORMATS)}")
    add = OptionAdder(parser, "LOADGEN_CONVERT_")
    add("--from", str, None, "format of IN (default: told by its content)", metavar="FORMAT", choices=FORMATS)
    add("--skip-bad", yes_or_no, False, "leave bad lines out, and count them")
    add("--sort", yes_or_no, False, "put the sessions in the order of their times")
    add("--sessions", positive_int, None, "write only the first N", metavar="N")
    add("--length-scale", positive_float, 1.0, "make prompts and answers longer or shorter by a factor", metavar="X")
    add("--block-size", positive_int, None, "tokens of a hash id in IN (default: as its format has it)", metavar="N")
    add("--time-unit", str, None, "unit of times in IN (default: as its format has it)", choices=UNITS)
    add("--lossy", yes_or_no, False, "leave out what the format cannot hold even if the load becomes another")


def run(options: argparse.Namespace) -> int:
    """Convert, and say what became of it."""
    from loadgen.results.output import OutputError
    from loadgen.traces.convert import Changes, convert
    from loadgen.traces.formats import Format, TimeUnit, open_trace
    from loadgen.traces.model import TraceError

    try:
        trace = open_trace(
            options.source,
            vars(options)["from"] and Format(vars(options)["from"]),
            skip_bad=options.skip_bad,
            block_size=options.block_size,
            time_unit=options.time_unit and TimeUnit(options.time_unit),
        )
        changes = Changes(options.sort, options.length_scale, options.sessions, options.lossy)
        converted = convert(trace, options.target, Format(options.to), changes, _Progress(trace))
    except (TraceError, OutputError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    told = sys.stdout if options.target.is_file() else sys.stderr  # the trace itself may have gone to standard output
    for line in report(trace, options.target, options.to, converted):
        print(line, file=told)
    return 0


def report(trace: TraceFile, target: Path, to: str, converted: Converted) -> list[str]:
    """What was written and what was not, for people."""
    lines = [f"{target}: {to}, from {converted.sessions:,} sessions with {converted.turns:,} turns"]
    if trace.bad.count:
        lines.append(f"  bad lines skipped: {trace.bad.count:,}")
        lines += [f"    {text}" for text in trace.bad.first]
    lines += [f"  left out of {trace.path}: {count:,} {what}" for what, count in trace.left_out.items()]
    lines += [f"  not kept: {what} ({count:,})" for what, count in converted.lost.items()]
    lines += [f"  note: {text}" for text in converted.remarks]
    return lines


class _Progress:
    """A line on a terminal that says how far it is; nothing elsewhere."""

    def __init__(self, trace: TraceFile) -> None:
        self._trace = trace
        self._next = time.monotonic() + REPORTED_EACH
        self._shown = sys.stderr.isatty()

    def __call__(self, sessions: int) -> None:
        if self._shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + REPORTED_EACH
            read = self._trace.bytes_read / max(1, self._trace.size)
            print(f"\r{read:4.0%} read, {sessions:,} sessions written", end="\r", file=sys.stderr, flush=True)
