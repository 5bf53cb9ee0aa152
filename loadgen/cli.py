"""The `loadgen` command: replay traces against LLM servers, compare, search, and read what was measured.

Exit codes: 0 all served, 1 some turns failed or a limit was passed, 2 bad input, 3 no usable server, 130 interrupted.
Heavy imports wait until a command runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from loadgen.commands import compare, convert, diff, inspect, mix, replay, report, resume, sweep, synth
from loadgen.options import EXIT_BAD_INPUT, EXIT_INTERRUPTED

COMMANDS = (replay, compare, sweep, resume, report, diff, convert, inspect, synth, mix)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="loadgen", description="Load tests for LLM servers that tell the truth.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"loadgen {metadata.version('paged-top')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    _open_standard_streams()
    options = make_parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets '?' for a plot's dots
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except argparse.ArgumentTypeError as error:  # of options that do not go together
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence()
        return 141
    except OSError as error:  # of standard output: every other one is told where it happens
        print(f"loadgen: standard output: cannot be written: {error.strerror or error}", file=sys.stderr)
        _silence()
        return EXIT_BAD_INPUT


def _open_standard_streams() -> None:
    """Those that were closed go nowhere: else a run's file could take their place, and a child write into it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # to the end


def _silence() -> None:
    """What is still to be written to standard output goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
