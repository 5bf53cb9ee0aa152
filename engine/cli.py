"""`paged-engine`: serve a model, or prepare it. Bad settings are one line on standard error and exit code 2."""

from __future__ import annotations

import argparse
import errno
import io
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, get_args

from engine.config import DEFAULT_MODEL
from engine.keys import hide_keys
from engine.log import printable
from engine.protocol import (
    MAX_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    MAX_WAIT,
    Allocation,
    Batching,
    Control,
    Preempt,
    ReservedFit,
    SchedulingPolicy,
)

ENVIRONMENT = "PAGED_ENGINE_"
USAGE, NO_OUTPUT, INTERRUPTED, NO_READER = 2, 1, 130, 141  # exit codes; the last two as a shell tells of a signal
MOST = 2**31 - 1  # of a whole number
LEAST_MODEL_LEN = 2  # a prompt's token and an answer's
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*((?P<power>[kmgtp])(?P<binary>i)?)?(?P<unit>b)?", re.IGNORECASE)
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def main(argv: Sequence[str] | None = None) -> int:
    if sys.stderr is None:  # closed: nobody wants to be told
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        parser = make_parser()
        arguments = parser.parse_args(argv)
        if arguments.command is None:
            parser.print_help()
            return USAGE
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED


def show(text: str) -> int:
    """Print what a command found out; returns the exit code: if it cannot be written, a line on standard error says so.

    A reader that has gone, as `| head` does, is no error to tell of.
    """
    try:
        if sys.stdout is None:  # closed
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 gets '?' for a plot's dots
        print(text, flush=True)
    except OSError as error:
        if sys.stdout is not None:  # what is still buffered must not fail again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return NO_READER
        print(f"paged-engine: error: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return NO_OUTPUT
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="paged-engine", description="A single-node LLM serving engine that shows what it does.")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", parser_class=_Parser)
    # These build on this module's options.
    from engine.scale_command import add_command as add_scale
    from engine.serve_command import add_command as add_serve
    from engine.simulator.command import add_command as add_simulate
    from engine.sizing.command import add_command as add_plan
    from engine.up_command import add_command as add_up

    add_serve(commands)
    add_up(commands)
    prepare = commands.add_parser("prepare", help="fetch and convert a model, so that serve starts quickly")
    prepare.set_defaults(command="prepare", run=_prepare)
    add_model(prepare)
    add_scale(commands)
    add_simulate(commands)
    add_plan(commands)
    return parser


def add_control(add: Adder) -> None:
    """The options that say how an engine starts out: `chosen_control` reads them."""
    add("--batching", choices=get_args(Batching), default="continuous", help="default: %(default)s")
    add("--allocation", choices=get_args(Allocation), default="paged", help="default: %(default)s")
    defaults = Control()
    add(
        "--reserved-fit",
        choices=get_args(ReservedFit),
        default=defaults.reserved_fit,
        help="which hole a reservation takes (default: %(default)s)",
    )
    add(
        "--max-num-seqs",
        type=between(1, MAX_NUM_SEQS),
        default=defaults.max_num_seqs,
        metavar="N",
        help="requests in a batch (default: %(default)s)",
    )
    add(
        "--max-num-batched-tokens",
        type=between(1, MAX_BATCHED_TOKENS),
        default=defaults.max_num_batched_tokens,
        metavar="N",
        help="tokens in a step (default: %(default)s)",
    )
    add(
        "--max-prefill-chunk",
        type=between(0, MAX_BATCHED_TOKENS),
        default=defaults.max_prefill_chunk,
        metavar="N",
        help="tokens of one prompt in a step (default: 0, half of the step while others can use the rest)",
    )
    add(
        "--scheduling-policy",
        choices=get_args(SchedulingPolicy),
        default=defaults.scheduling_policy,
        help="who of those that wait goes first (default: %(default)s)",
    )
    add(
        "--max-wait",
        type=number(0, MAX_WAIT, "a number of seconds"),
        default=defaults.max_wait,
        metavar="SECONDS",
        help=f"after which shortest_prefill lets a request go first (default: {defaults.max_wait:g})",
    )
    add(
        "--preempt",
        choices=get_args(Preempt),
        default=defaults.preempt,
        help="how a request gives its blocks up: auto takes the cheaper (default: %(default)s)",
    )
    add("--no-prefix-cache", action="store_true", help="never reuse KV blocks of equal prefixes")
    add("--no-chunked-prefill", action="store_true", help="run each prompt in one step")


def size_or_none(text: str) -> int:
    """As `size`, or 0. Raises ArgumentTypeError."""
    return 0 if text.strip() == "0" else size(text)


def size(text: str) -> int:
    """Bytes from `512MiB`, `2GiB`, `1GB` or a plain number. Raises ArgumentTypeError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 512MiB, 2GiB or 1GB, got {text!r}")
    base = 1024 if match["binary"] or not match["unit"] else 1000
    count = float(match["number"]) * base ** ("kmgtp".find(match["power"].lower()) + 1 if match["power"] else 0)
    if not 1 <= count <= 1 << 50:
        raise argparse.ArgumentTypeError(f"must be from 1 byte to 1 PiB, got {text!r}")
    return int(count)


def unicode_text(text: str) -> str:
    """Text that can be shown and sent. Raises ArgumentTypeError for bytes of the command line that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"must be UTF-8, got {text!r}") from None
    return text


class _Parser(argparse.ArgumentParser):
    """One line for an error, not the whole usage."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # `-1GiB` too is a value, as in Python 3.14

    def error(self, message: str) -> NoReturn:
        told = printable(hide_keys(message, sys.argv))
        self.exit(USAGE, f"{self.prog}: error: {told} (try {self.prog} --help)\n")

    def print_help(self, file: Any = None) -> None:
        if file is not None:
            super().print_help(file)
        elif unwritten := show(self.format_help().rstrip()):
            self.exit(unwritten)


class FileName(str):
    """A file's name, and the environment variable that gave it: errors of reading the file name that one."""

    variable: str | None = None


def file_name(text: str) -> FileName:
    """Raises ArgumentTypeError for none."""
    if not text:
        raise argparse.ArgumentTypeError("must be a file's name, got ''")
    return FileName(text)


class _FromEnvironment(str):
    """An option's text from an environment variable.

    argparse converts a default that is text only for the command that runs, and only if the option is not given.
    """

    variable: str


class Adder:
    """Adds options that can also be set by an environment variable, PAGED_ENGINE_ and the option's name.

    They are added to `group`, if there is one: of a group that excludes, the caller says which of two settings goes.
    """

    def __init__(self, parser: argparse.ArgumentParser, group: argparse._ActionsContainer | None = None) -> None:
        self._group = group or parser

    def __call__(self, option: str, **settings: Any) -> None:
        variable = ENVIRONMENT + option.removeprefix("--").replace("-", "_").upper()
        settings["help"] = f"{settings['help']} [{variable}]"
        action = self._group.add_argument(option, **settings)
        text = os.environ.get(variable)
        if text is not None:
            action.default = _FromEnvironment(text)
            action.default.variable = variable
            action.type = _converter(action)


def _converter(action: argparse.Action) -> Callable[[str], Any]:
    """The type of `action`, which for text from the environment also splits, checks choices and names the variable."""
    convert: Any = action.type or (_switch if action.nargs == 0 else str)

    def converted(text: str) -> Any:
        if not isinstance(text, _FromEnvironment):
            return convert(text)
        try:
            value = [convert(word) for word in text.split()] if action.nargs == "+" else convert(str(text))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{text.variable}: {error}") from None
        if isinstance(value, FileName):
            value.variable = text.variable
        if action.choices is not None and value not in action.choices:
            allowed = ", ".join(action.choices)
            raise argparse.ArgumentTypeError(f"{text.variable}: must be one of {allowed}, got {str(text)!r}")
        return value

    return converted


def _switch(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f"must be 1 or 0, got {text!r}")
    return text.lower() in _TRUE


def add_model(parser: argparse.ArgumentParser) -> None:
    add = Adder(parser)
    add(
        "--model",
        type=unicode_text,
        default=DEFAULT_MODEL,
        help="smollm2-135m, tiny, a folder, a .gguf file or a Hugging Face hub id (default: %(default)s)",
    )


def between(least: int, most: int = MOST) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `most`. It raises ArgumentTypeError."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, got {text!r}")
        return value

    return whole_number


def number(least: float, most: float, what: str = "a number") -> Callable[[str], float]:
    """A reader of numbers from `least` to `most`, called `what` in errors. It raises ArgumentTypeError."""

    def any_number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {what} from {least:.10g} to {most:.10g}, got {text!r}")
        return value

    return any_number


def chosen_control(arguments: argparse.Namespace) -> Control:
    """What the options of `add_control` say."""
    return Control(
        batching=arguments.batching,
        allocation=arguments.allocation,
        reserved_fit=arguments.reserved_fit,
        prefix_cache=not arguments.no_prefix_cache,
        chunked_prefill=not arguments.no_chunked_prefill,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_prefill_chunk=arguments.max_prefill_chunk,
        scheduling_policy=arguments.scheduling_policy,
        max_wait=arguments.max_wait,
        preempt=arguments.preempt,
    )


def _prepare(arguments: argparse.Namespace) -> int:
    from engine.loading.errors import ModelError
    from engine.loading.prepare import prepare

    try:
        prepare(arguments.model)
    except ModelError as error:
        return unusable(str(error))
    return 0


def unusable(message: str) -> int:
    print(f"paged-engine: error: {printable(message)}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
