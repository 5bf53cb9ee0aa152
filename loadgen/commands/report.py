"""`loadgen report`: what runs measured, from their files: tables and plots, a page, and files for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.options import EXIT_BAD_INPUT, Commands, OptionAdder, unicode_text, yes_or_no

if TYPE_CHECKING:
    from loadgen.results.document import Measured

OUTPUTS = ("--html", "--csv", "--json", "--vllm-json")


def add_parser(commands: Commands) -> None:
    """Its options."""
    parser = commands.add_parser(
        "report",
        help="tables, plots, a page or other files from the file of a run",
        description="Report on the files that --out of replay, compare and sweep keep. Several are shown side by side, "
        "or with --merge as repeats of one run.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a run's file")
    add = OptionAdder(parser, "LOADGEN_REPORT_")
    add("--merge", yes_or_no, False, "the files are repeats: one report of all, whose latencies are pooled")
    add("--slo", unicode_text, None, "other limits than the run's: ttft=500ms,tpot=50ms,e2e=10s", metavar="LIMITS")
    add(
        "--warmup", unicode_text, None, "leave other first requests out: 10s, or 50 (requests); 0: none", metavar="SPAN"
    )
    add("--cooldown", unicode_text, None, "leave other last ones out", metavar="SPAN")
    add("--html", Path, None, "write one page with everything in it to FILE", metavar="FILE")
    add("--csv", Path, None, "write a line for each request to FILE", metavar="FILE")
    add("--json", Path, None, "write the figures to FILE", metavar="FILE")
    add("--vllm-json", Path, None, "write them to FILE as `vllm bench serve` does", metavar="FILE")
    add("--no-plots", yes_or_no, False, "tables only")


def run(arguments: argparse.Namespace) -> int:
    """Write the files that were asked for, then print."""
    from loadgen.console import stderr, stdout
    from loadgen.results.document import Asked, measure
    from loadgen.results.output import OutputError
    from loadgen.results.report import print_measured, print_side_by_side
    from loadgen.results.run_file import ResultError, RunFile

    try:
        _check(arguments)
        asked = Asked(arguments.slo, arguments.warmup, arguments.cooldown)
        runs = []
        for path in arguments.files:
            with stderr().status(f"reading {path}"):
                runs.append(measure(RunFile.read(path), asked))
        _write(arguments, runs)
    except (ResultError, OutputError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    if arguments.merge or len(runs) == 1:
        print_measured(runs, stdout(), plots=not arguments.no_plots)
    else:
        documents = [one.document() for one in runs]
        names = [path.name for path in arguments.files]
        if len(set(names)) < len(names):
            names = [str(path) for path in arguments.files]
        print_side_by_side(documents, names, stdout())
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Find bad options before anything is read. Raises `OutputError`, and `ResultError` that names the option."""
    from loadgen.metrics.slo import parse_slo
    from loadgen.metrics.window import parse_span
    from loadgen.results.output import OutputError, check_writable
    from loadgen.results.run_file import ResultError

    for flag, text, parse in (
        ("--slo", arguments.slo, parse_slo),
        ("--warmup", arguments.warmup, parse_span),
        ("--cooldown", arguments.cooldown, parse_span),
    ):
        try:
            if text is not None:
                parse(text)
        except ValueError as error:
            raise ResultError(f"{flag}: {error}") from None
    if arguments.vllm_json is not None and len(arguments.files) > 1:
        raise OutputError("--vllm-json: it holds one run; name one FILE")
    checked: list[Path] = []
    for flag, path in _outputs(arguments).items():
        check_writable(flag, path, arguments.files, checked)
        checked.append(path)


def _outputs(arguments: argparse.Namespace) -> dict[str, Path]:
    named = {flag: getattr(arguments, flag.removeprefix("--").replace("-", "_")) for flag in OUTPUTS}
    return {flag: path for flag, path in named.items() if path is not None}


def _write(arguments: argparse.Namespace, runs: list[Measured]) -> None:
    from loadgen.results.document import merged
    from loadgen.results.exports import write_csv, write_vllm
    from loadgen.results.html import page
    from loadgen.results.output import whole_file, write_json

    for flag, path in _outputs(arguments).items():
        if flag == "--json":
            one = arguments.merge or len(runs) == 1
            write_json(flag, path, merged(runs) if one else {"runs": [run.document() for run in runs]})
            continue
        with whole_file(flag, path) as file:
            if flag == "--html":
                file.write(page(runs, arguments.merge).encode())
            elif flag == "--csv":
                write_csv(file, runs)
            else:
                write_vllm(file, runs[0])
