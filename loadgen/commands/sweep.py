"""`loadgen sweep`: one load after the other, the knee, and the most goodput by search."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.commands.replay import EPILOG, run_options, settings_of
from loadgen.options import (
    Commands,
    OptionAdder,
    comma_separated,
    positive_float,
    positive_int,
    whole_number,
    yes_or_no,
)

if TYPE_CHECKING:
    from loadgen.experiments.sweeping import Plan

OVER = ("rate", "users", "concurrency", "speed")
STEPS = 6
SEARCH = 8


def add_parser(commands: Commands) -> None:
    """Its options."""
    parser = commands.add_parser(
        "sweep",
        help="one load after the other: the knee, and the most goodput by search",
        description="Play the trace at one load after the other, and tell the knee. With limits (--slo) also the load "
        "with the most goodput, for which loads are added between and beyond the ones given.",
        epilog=EPILOG,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    run_options(parser)
    add = OptionAdder(parser.add_argument_group("this command"), "LOADGEN_SWEEP_")
    add("--over", str, "rate", "what goes from load to load (default: rate, in sessions/s)", choices=OVER)
    add("--values", _loads, None, "the loads, as 1,2,4", metavar="LOADS")
    add("--from", positive_float, None, "the first load, instead of --values", metavar="A")
    add("--to", positive_float, None, "the last load", metavar="B")
    add("--steps", positive_int, STEPS, f"how many from A to B, in even ratios (default: {STEPS})", metavar="N")
    add("--for", _duration, None, "send at each load for so long, as 30s", metavar="TIME")
    add("--requests", positive_int, None, "send so many requests at each load", metavar="N")
    add("--search", whole_number, SEARCH, f"at most N more loads to find the most goodput (default: {SEARCH})", "N")
    add("--out", Path, None, "keep each load's run in FOLDER; a sweep that is there is gone on with", metavar="FOLDER")
    add("--json", Path, None, "write what was found to FILE", metavar="FILE")
    add("--no-plots", yes_or_no, False, "tables only")


def _loads(text: str) -> tuple[float, ...]:
    loads = tuple(positive_float(word) for word in comma_separated(text))
    if not loads:
        raise argparse.ArgumentTypeError(f"expected loads between commas, like 1,2,4, got {text!r}")
    return loads


def _duration(text: str) -> str:
    from loadgen.durations import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"expected a time above 0, got {text!r}")
    return text


def plan_of(arguments: argparse.Namespace) -> Plan:
    """What the options ask for. Raises `argparse.ArgumentTypeError`."""
    from loadgen.experiments.sweep import Over, named_load, settings_at, spread_loads
    from loadgen.experiments.sweeping import Plan, with_end
    from loadgen.stop_rules import stop_rules_of

    over = Over(arguments.over)
    first, last = getattr(arguments, "from"), arguments.to
    if (arguments.values is None) == (first is None and last is None):
        raise argparse.ArgumentTypeError("give the loads with --values, or with --from and --to")
    if arguments.values is None and (first is None or last is None):
        raise argparse.ArgumentTypeError(f"{'--from' if first is None else '--to'} is missing")
    if getattr(arguments, "for") is not None and arguments.requests is not None:
        raise argparse.ArgumentTypeError("--for and --requests: give one of them; each says when a load ends")
    try:
        if arguments.values is None:
            loads = spread_loads(first, last, arguments.steps, over)
        else:
            loads = sorted({named_load(load, over) for load in arguments.values})
        base = with_end(settings_of(arguments), getattr(arguments, "for"), arguments.requests)
        for load in loads:
            stop_rules_of(settings_at(base, over, load))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Plan(base, over, tuple(loads), arguments.search)


def run(arguments: argparse.Namespace) -> int:
    """Check the input, then run. Raises `argparse.ArgumentTypeError`."""
    from loadgen.command import execute
    from loadgen.experiments.sweeping import sweep

    plan = plan_of(arguments)
    return execute(lambda interrupt: sweep(plan, arguments, interrupt))
