"""The `loadgen` command: replay a trace, compare two ways of serving it, or make the trace again.

Exit codes: 0 all served, 1 some turns failed, 2 bad input, 3 no usable server, 130 interrupted.
Heavy imports wait until a command runs.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

EXIT_FAILED_TURNS = 1
EXIT_BAD_INPUT = 2
EXIT_NO_SERVER = 3
ENGINE_MODEL = "smollm2-135m"
LEAST, MOST = 1e-9, 1e9  # of any number above 0: times divided by it stay finite


def _positive(kind: Callable[[str], float], text: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"expected {what} above 0, got {text!r}")
    if not LEAST <= value <= MOST:
        raise argparse.ArgumentTypeError(f"expected a number from {LEAST:g} to {MOST:g}, got {text!r}")
    return value


def positive_int(text: str) -> int:
    """A whole number above 0."""
    return int(_positive(int, text))


def positive_float(text: str) -> float:
    """A number above 0, within `LEAST` and `MOST`."""
    return _positive(float, text)


def whole_number(text: str) -> int:
    """A whole number from 0 on."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, got {text!r}")
    return value


def server_url(text: str) -> str:
    """An http(s) address without a path at its end; `/v1` is taken off."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"expected an address like http://127.0.0.1:8000, got {text!r}")
    return text.rstrip("/").removesuffix("/v1")


def engine_arguments(text: str) -> tuple[str, ...]:
    """Arguments as a shell splits them."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"cannot be split as a shell would ({error}): {text!r}") from None


def unicode_text(text: str) -> str:
    """Text that can be sent; bytes of the command line that are no UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"expected UTF-8, got {text!r}") from None
    return text


def yes_or_no(text: str) -> bool:
    """A switch given as an environment variable."""
    values = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"expected 1 or 0, got {text!r}")
    return values[text.lower()]


class _Environment(str):
    """An option's text from an environment variable; argparse converts it only for the command that runs."""

    variable: str


def _converter(kind: Callable[[str], Any], choices: Sequence[str] | None) -> Callable[[str], Any]:
    """`kind`, with errors that name the variable a text came from, and choices checked for it too."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
            if choices and value not in choices:
                raise argparse.ArgumentTypeError(f"expected one of {', '.join(choices)}, got {text!r}")
        except argparse.ArgumentTypeError as error:
            if isinstance(text, _Environment):
                raise argparse.ArgumentTypeError(f"{text.variable}: {error}") from None
            raise
        return value

    return convert


class _Adder:
    """Adds options whose default may come from an environment variable of the same name."""

    def __init__(self, parser: argparse.ArgumentParser, prefix: str = "LOADGEN_") -> None:
        self._parser = parser
        self._prefix = prefix

    def __call__(
        self,
        flag: str,
        kind: Callable[[str], Any],
        default: Any,
        help: str,
        metavar: str | None = None,
        choices: Sequence[str] | None = None,
    ) -> None:
        variable = self._prefix + flag.removeprefix("--").replace("-", "_").upper()
        if variable in os.environ:
            default = _Environment(os.environ[variable])
            default.variable = variable
        convert = _converter(kind, choices)
        help = f"{help} [{variable}]"
        if kind is yes_or_no:
            self._parser.add_argument(flag, action="store_true", default=default, help=help).type = convert
            return
        metavar = metavar or (f"{{{','.join(choices)}}}" if choices else None)
        self._parser.add_argument(flag, type=convert, default=default, help=help, metavar=metavar)


def _run_options(parser: argparse.ArgumentParser) -> _Adder:
    parser.add_argument("file", metavar="FILE", help="the trace (see traces/README.md)")
    add = _Adder(parser)
    add("--url", server_url, None, "an OpenAI-compatible server; without it an engine is started", metavar="URL")
    add("--model", unicode_text, None, f"model name (default: the server's first; own engine: {ENGINE_MODEL})", "NAME")
    add("--sessions", positive_int, None, "only the first N sessions", metavar="N")
    add("--speed", positive_float, 1.0, "divide arrival and think times by X (default: 1)", metavar="X")
    add("--concurrency", positive_int, None, "at most N requests in flight (default: no limit)", metavar="N")
    add("--rate", positive_float, None, "Poisson arrivals of R sessions/s; --speed then divides think times only", "R")
    add("--seed", whole_number, 0, "seed of the --rate arrivals (default: 0)", metavar="N")
    add("--timeout", positive_float, 3600.0, "seconds from sending to the end of an answer (default: 3600)", "S")
    add("--engine-args", engine_arguments, (), "more arguments for the engine that is started", metavar='"..."')
    add("--api-key", unicode_text, None, "sent as the bearer token", metavar="KEY")
    add("--json", Path, None, "write the figures to FILE", metavar="FILE")
    add("--no-plots", yes_or_no, False, "tables only")
    return add


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="loadgen", description="Replay chat traces against an LLM server.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"loadgen {metadata.version('paged-top')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    epilog = "Every option is also an environment variable, named in brackets. Ctrl-C stops and reports so far."

    run = commands.add_parser("replay", help="replay a trace and report", epilog=epilog, allow_abbrev=False)
    add = _run_options(run)
    add("--mode", str, None, "set the engine's batching first; it stays so", choices=("static", "continuous"))
    add("--alloc", str, None, "set the engine's allocation first; it stays so", choices=("paged", "reserved"))
    add("--steer", yes_or_no, False, "obey lines on standard input while it runs: 'speed X' and 'stop'")

    compare = commands.add_parser(
        "compare", help="static+reserved, then continuous+paged, side by side", epilog=epilog, allow_abbrev=False
    )
    _run_options(compare)

    synth = commands.add_parser("synth", help="make traces/chat500.jsonl again, bit for bit", allow_abbrev=False)
    add = _Adder(synth, "LOADGEN_SYNTH_")
    add("--out", Path, Path("traces/chat500.jsonl"), "file to write (default: traces/chat500.jsonl)", metavar="FILE")
    add("--excerpt", Path, None, "records to follow (default: traces/azure_conv_excerpt.csv)", metavar="FILE")
    add("--seed", whole_number, None, "seed (default: that of chat500.jsonl)", metavar="N")
    add("--sessions", positive_int, None, "how many sessions (default: 500)", metavar="N")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = make_parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets '?' for a plot's dots
    try:
        if options.command == "synth":
            return _synth(options)
        from loadgen.command import run

        return run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _synth(options: argparse.Namespace) -> int:
    from loadgen import synth
    from loadgen.trace import TraceError

    try:
        excerpt = synth.read_excerpt(options.excerpt or synth.DEFAULT_EXCERPT)
        count = synth.DEFAULT_SESSIONS if options.sessions is None else options.sessions
        seed = synth.DEFAULT_SEED if options.seed is None else options.seed
        header, sessions = synth.synthesize(excerpt, count, seed)
        synth.write_trace(header, sessions, options.out)
    except TraceError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except OSError as error:
        print(f"loadgen: --out {options.out}: cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_BAD_INPUT
    turns = sum(len(session.turns) for session in sessions)
    print(f"{options.out}: {len(sessions)} sessions, {turns} turns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
