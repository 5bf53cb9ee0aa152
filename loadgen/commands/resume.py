"""`loadgen resume`: go on with a run that was interrupted or killed."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadgen.commands.replay import EPILOG
from loadgen.options import Commands, OptionAdder, key_options, metrics_url, server_address, yes_or_no


def add_parser(commands: Commands) -> None:
    """Its options."""
    parser = commands.add_parser(
        "resume", help="go on with a run that was interrupted", epilog=EPILOG, allow_abbrev=False
    )
    parser.set_defaults(run=run)
    parser.add_argument("file", type=Path, metavar="RUN", help="the file that `replay --out` wrote")
    add = OptionAdder(parser)
    add("--url", server_address, None, "the server, if it has moved (default: as the run had it)", metavar="URL")
    add("--metrics-url", metrics_url, None, "where its metrics are, if they have moved", metavar="URL")
    key_options(add)
    add("--json", Path, None, "write the figures to FILE", metavar="FILE")
    add("--no-plots", yes_or_no, False, "tables only")


def run(arguments: argparse.Namespace) -> int:
    """Play what is left."""
    from loadgen.command import execute
    from loadgen.replay import resume

    return execute(lambda interrupt: resume(arguments.file, arguments, interrupt))
