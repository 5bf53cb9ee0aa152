"""`loadgen inspect`: what a trace holds, without playing it."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadgen.options import FORMATS, UNITS, Commands, OptionAdder, positive_int, yes_or_no

EPILOG = (
    "Every option is also an environment variable, named in brackets. Files may be of any size: they are read once, "
    "in constant memory. Ctrl-C stops and tells what was read so far."
)


def add_parser(commands: Commands) -> None:
    """Its options."""
    parser = commands.add_parser("inspect", help="statistics and plots of traces", epilog=EPILOG, allow_abbrev=False)
    parser.set_defaults(run=run)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a trace (formats: see traces/README.md)")
    add = OptionAdder(parser, "LOADGEN_INSPECT_")
    add("--format", str, None, "the traces' format (default: told by their content)", "NAME", FORMATS)
    add("--skip-bad", yes_or_no, False, "leave out lines that do not fit, and count them")
    add("--sessions", positive_int, None, "only the first N sessions", metavar="N")
    add("--block-size", positive_int, None, "tokens that a hash id names (default: the format's)", metavar="N")
    add("--time-unit", str, None, "of the traces' times (default: the format's)", choices=UNITS)
    add("--engine-block-size", _whole_numbers, (16,), "tell the hit rate for blocks of N tokens (default: 16)", "N[,N]")
    add("--contexts", _whole_numbers, None, "count requests longer than N tokens (default: 2048 to 131072)", "N[,N]")
    add("--json", Path, None, "write the figures to FILE", metavar="FILE")
    add("--no-plots", yes_or_no, False, "tables only")


def _whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers above 0 between commas."""
    return tuple(positive_int(word.strip()) for word in text.split(","))


def run(options: argparse.Namespace) -> int:
    """Read every file, then tell of all of them."""
    from loadgen.inspection.command import run as inspect

    return inspect(options)
