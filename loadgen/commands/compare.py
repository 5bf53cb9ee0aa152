"""`loadgen compare`: A against B over repeats, with a verdict and its uncertainty."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadgen.commands.replay import EPILOG, run_options, settings_of
from loadgen.options import Commands, OptionAdder, positive_int, unicode_text, yes_or_no

REPEATS = 6  # find 10 % where runs scatter by up to 3.5 %, as the tests show; even, so that each side is first as often
SIDE = 'what A is: options and control fields, like mode=static,alloc=reserved or url=...,speed=2 or engine-args="..."'


def add_parser(commands: Commands) -> None:
    """Its options."""
    parser = commands.add_parser(
        "compare",
        help="A against B: modes, settings or servers, with a verdict",
        description="Play the same requests to two sides in turn, and tell what differs, by how much, and how surely. "
        "Without --a and --b: static batching with reserved memory against continuous batching with paged memory.",
        epilog=EPILOG,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    run_options(parser)
    add = OptionAdder(parser.add_argument_group("this command"), "LOADGEN_COMPARE_")
    add("--a", unicode_text, None, SIDE, metavar="SIDE")
    add("--b", unicode_text, None, "the same for B; one of them alone is held against the options as they are", "SIDE")
    add(
        "--repeat",
        positive_int,
        REPEATS,
        f"runs of each side, in turn (default: {REPEATS}; a verdict takes 3)",
        metavar="N",
    )
    add("--out", Path, None, "keep every run's file in FOLDER, for report and diff", metavar="FOLDER")
    add("--json", Path, None, "write both sides, their ratios and the verdicts to FILE", metavar="FILE")
    add("--no-plots", yes_or_no, False, "tables only")


def run(arguments: argparse.Namespace) -> int:
    """Check the input, then run. Raises `argparse.ArgumentTypeError`."""
    from loadgen.command import execute
    from loadgen.experiments.comparing import compare
    from loadgen.experiments.sides import parse_sides

    sides = parse_sides(arguments.a, arguments.b, settings_of(arguments))
    return execute(lambda interrupt: compare(sides, arguments, interrupt))
