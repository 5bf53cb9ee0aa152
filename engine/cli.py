"""`paged-engine`: serve a model, or prepare it. Bad settings are one line on standard error and exit code 2."""

from __future__ import annotations

import argparse
import errno
import io
import math
import os
import re
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, get_args

from engine.config import DEFAULT_KV_MEMORY, DEFAULT_MODEL, EngineConfig
from engine.protocol import (
    MAX_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    MAX_WAIT,
    Allocation,
    Batching,
    Control,
    Preempt,
    Quantize,
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
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return USAGE
    try:
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
    serve = commands.add_parser("serve", help="serve a model over an OpenAI-compatible API")
    serve.set_defaults(command="serve", run=_serve)
    _add_model(serve)
    add = Adder(serve)
    add(
        "--served-model-name",
        nargs="+",
        type=unicode_text,
        metavar="NAME",
        help="names clients use for it (default: --model)",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=between(0, 65535), default=8000, help="0 picks a free one (default: %(default)s)")
    add("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto", help="of weights and KV")
    add(
        "--quantize",
        choices=get_args(Quantize),
        default="none",
        help="matrices in 8 bits, or in 4 as a GGUF file has them, on a CPU (default: %(default)s)",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s")
    add("--block-size", type=between(1, 1024), default=16, metavar="N", help="slots per KV block (default: 16)")
    add("--kv-memory", type=size, default=DEFAULT_KV_MEMORY, metavar="SIZE", help="for KV blocks (default: 512MiB)")
    add(
        "--max-model-len",
        type=between(LEAST_MODEL_LEN),
        metavar="N",
        help="tokens per request, prompt and answer together",
    )
    add_control(add)
    add(
        "--swap-space",
        type=size_or_none,
        default=0,
        metavar="SIZE",
        help="host memory for the KV of preempted requests (default: 0, none)",
    )
    add("--seed", type=between(0), default=0, metavar="N", help="of tiny's random weights (default: 0)")
    add("--check-invariants", action="store_true", help="check the block pool after every step (slow)")
    prepare = commands.add_parser("prepare", help="fetch and convert a model, so that serve starts quickly")
    prepare.set_defaults(command="prepare", run=_prepare)
    _add_model(prepare)
    # These build on this module's options.
    from engine.simulator.command import add_command as add_simulate
    from engine.sizing.command import add_command as add_plan

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
        self.exit(USAGE, f"{self.prog}: error: {message} (try {self.prog} --help)\n")

    def print_help(self, file: Any = None) -> None:
        if file is not None:
            super().print_help(file)
        elif unwritten := show(self.format_help().rstrip()):
            self.exit(unwritten)


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
        if action.choices is not None and value not in action.choices:
            allowed = ", ".join(action.choices)
            raise argparse.ArgumentTypeError(f"{text.variable}: must be one of {allowed}, got {str(text)!r}")
        return value

    return converted


def _switch(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f"must be 1 or 0, got {text!r}")
    return text.lower() in _TRUE


def _add_model(parser: argparse.ArgumentParser) -> None:
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


def _config(arguments: argparse.Namespace) -> EngineConfig:
    return EngineConfig(
        model=arguments.model,
        dtype=arguments.dtype,
        quantize=arguments.quantize,
        device=arguments.device,
        block_size=arguments.block_size,
        kv_memory=arguments.kv_memory,
        swap_space=arguments.swap_space,
        max_model_len=arguments.max_model_len,
        control=chosen_control(arguments),
        check_invariants=arguments.check_invariants,
        seed=arguments.seed,
    )


def _serve(arguments: argparse.Namespace) -> int:
    names = tuple(arguments.served_model_name or (arguments.model,))
    try:
        listener = _bind(arguments.host, arguments.port)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that is none, as `a..b`
        reason = getattr(error, "strerror", None) or error
        return _unusable(f"cannot listen on {arguments.host} port {arguments.port}: {reason}")
    # The core takes longest to start: it goes first, and this process imports its own libraries beside it.
    from engine.core_client import CoreProcess

    core = CoreProcess(_config(arguments))
    try:
        import asyncio

        from engine.server.serve import serve

        return asyncio.run(serve(_config(arguments), core, listener, names))
    finally:
        core.stop(timeout=1.0)
        listener.close()


def _prepare(arguments: argparse.Namespace) -> int:
    from engine.loading.errors import ModelError
    from engine.loading.prepare import prepare

    try:
        prepare(arguments.model)
    except ModelError as error:
        return _unusable(str(error))
    return 0


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)  # a second server on this port fails at once, not when this one is ready
    except OSError:
        listener.close()
        raise
    return listener


def _unusable(message: str) -> int:
    print(f"paged-engine: error: {message}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
