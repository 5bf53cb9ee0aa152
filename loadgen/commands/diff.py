"""`loadgen diff`: how one run differs from another in every figure, and whether it may: for a CI job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.options import EXIT_BAD_INPUT, EXIT_FAILED_TURNS, Commands, OptionAdder, yes_or_no

if TYPE_CHECKING:
    from loadgen.results.diff import Condition

EXAMPLES = "'ttft.p99 > +10%%', 'e2e.p90 > 2s', 'output_throughput < -5%%', 'failed > 0'"


def add_parser(commands: Commands) -> None:
    """Its options."""
    parser = commands.add_parser(
        "diff",
        help="how one run differs from another; for CI, whether it may",
        description="Each of A and B is a run's file, or what --json of replay or report wrote of one. "
        "Exit code 1: a condition of --fail-if holds. A figure that a condition needs and a run lacks is an error.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("a", metavar="A", type=Path, help="the run before")
    parser.add_argument("b", metavar="B", type=Path, help="the run after")
    parser.add_argument(
        "--fail-if",
        type=_condition,
        action="append",
        default=[],
        metavar="CONDITION",
        help=f"exit with 1 if B is so; a sign or %% means the change from A: {EXAMPLES}; may be given again",
    )
    add = OptionAdder(parser, "LOADGEN_DIFF_")
    add("--all", yes_or_no, False, "show every figure, not what matters most and the conditions' alone")
    add("--json", Path, None, "write both, their changes and the conditions to FILE", metavar="FILE")


def _condition(text: str) -> Condition:
    from loadgen.results.diff import ConditionError, parse_condition

    try:
        return parse_condition(text)
    except ConditionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, and judge by the conditions."""
    from loadgen.console import stdout
    from loadgen.results.diff import ConditionError, diff_document, diff_table, pairs
    from loadgen.results.document import differing_settings, read_document
    from loadgen.results.output import OutputError, check_writable, write_json
    from loadgen.results.report import print_notes, print_warnings, rich_table
    from loadgen.results.run_file import KILLED, ResultError

    try:
        if arguments.json is not None:
            check_writable("--json", arguments.json, (arguments.a, arguments.b))
        documents = [read_document(path) for path in (arguments.a, arguments.b)]
        for path, document in zip((arguments.a, arguments.b), documents, strict=True):
            if arguments.fail_if and document["settings"].get("stopped_by") == KILLED:
                raise ResultError(
                    f"{path}: was killed before its end, so it cannot be judged; `loadgen resume` ends it"
                )
        figures = pairs(*documents)
        judged = {condition: condition.holds(figures) for condition in arguments.fail_if}
        if arguments.json is not None:
            write_json("--json", arguments.json, diff_document(figures, judged))
    except ConditionError as error:
        print(f"loadgen: --fail-if {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (ResultError, OutputError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    out = stdout()
    for side, document in zip("AB", documents, strict=True):
        print_warnings(document, out, f"{side}: ")
    also = None if arguments.all else [condition.name for condition in arguments.fail_if]
    out.print(rich_table(diff_table(figures, ("A", "B"), also)))
    for side, document in zip("AB", documents, strict=True):
        print_notes(document, out, f"{side}: ")
    if other := differing_settings(documents):
        out.print(f"A and B were asked for other things: {', '.join(other)}.", highlight=False)
    for condition, holds in judged.items():
        verdict = "FAIL" if holds else "pass"
        line = f"{verdict}  {condition.text}   ({condition.seen(figures)})"
        out.print(line, markup=False, highlight=False, style="bold red" if holds else "green")
    return EXIT_FAILED_TURNS if any(judged.values()) else 0
