"""The `paged-top` command. Exit codes: 0 fine, 1 no usable engine, 2 bad input, 130 interrupted.

Heavy imports wait until something runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tui.look import Look
    from tui.replay import Replay

ENVIRONMENT = "PAGED_TOP_"
USAGE = 2
INTERRUPTED = 130
DEMO_SIZE = (160, 48)
DEMO_SPEED = 6.0  # what two cores can serve: a queue that static leaves behind goes away
DEMO_MINUTE_SESSIONS = 120  # more than a minute serves: the load lasts to the end
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


class _Parser(argparse.ArgumentParser):
    """One line for an error, not the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message} (try {self.prog} --help)\n")


def server_url(text: str) -> str:
    """An http(s) address without a path. Raises ArgumentTypeError."""
    from httpx import URL, InvalidURL  # what will open it

    try:
        parts = URL(text)
        known = parts.scheme in ("http", "https") and bool(parts.host)
        usable = known and (parts.port is None or 0 < parts.port < 1 << 16)
    except (InvalidURL, UnicodeError):
        usable = False
    if not usable or any(c.isspace() for c in text):
        raise argparse.ArgumentTypeError(f"must be an address such as http://127.0.0.1:8000, got {text!r}")
    return text.rstrip("/").removesuffix("/v1")


def make_parser() -> argparse.ArgumentParser:
    """The command line; every option is an environment variable too."""
    parser = _Parser(
        prog="paged-top",
        description="Watch a paged-engine: every KV block, every step's batch, what sharing saves.",
        epilog="Each option is also an environment variable, named in brackets. Without a terminal it prints once.",
    )
    values = (
        ("--url", server_url, "URL", "attach to this engine; without it one is started, and stopped at the end"),
        ("--model", str, "NAME", "model of the engine that is started (default: smollm2-135m)"),
    )
    for option, kind, metavar, text in values:
        variable = _variable(option)
        default: Any = None
        if os.environ.get(variable):
            try:
                default = kind(os.environ[variable])
            except argparse.ArgumentTypeError as error:
                parser.error(f"{variable}: {error}")
        parser.add_argument(option, type=kind, default=default, metavar=metavar, help=f"{text} [{variable}]")
    switches = (
        ("--demo", "also replay traces/chat500.jsonl against it"),
        ("--once", "print one frame as text and exit; COLUMNS and LINES set its size"),
        ("--json", "as --once, but the totals as JSON"),
        ("--readonly", "never change the engine"),
        ("--ascii", "draw with ASCII alone"),
    )
    for option, text in switches:
        variable = _variable(option)
        value = os.environ.get(variable, "").lower()
        if value not in (*_YES, *_NO):
            parser.error(f"{variable}: must be 1 or 0, got {value!r}")
        parser.add_argument(option, action="store_true", default=value in _YES, help=f"{text} [{variable}]")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = make_parser()
    options = parser.parse_args(argv)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if options.demo and options.once:
        parser.error("--demo and --once exclude each other")
    if options.demo and options.json:
        parser.error("--demo and --json exclude each other")
    if options.url and options.model:
        parser.error("--model is for an engine that is started; --url names one that runs")
    if options.demo and options.readonly and not terminal:
        parser.error("--demo without a terminal switches modes, which --readonly forbids")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    from tui.look import ASCII, UNICODE, Look

    plain = bool(os.environ.get("NO_COLOR"))
    look = Look(ASCII if options.ascii else UNICODE, coloured=not plain)
    try:
        return _run(_chosen(options, look, terminal))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _chosen(options: argparse.Namespace, look: Look, terminal: bool) -> Coroutine[Any, Any, int]:
    if options.demo and not terminal:
        return _demo(options, look)
    if options.once or options.json or not terminal:
        from tui.once import run_once

        return run_once(options.url, options.model, options.json, _size((80, 24)), look)
    return _app(options, look)


async def _app(options: argparse.Namespace, look: Look) -> int:
    from tui.app import PagedTop
    from tui.session import Session

    replay = _replay() if options.demo else None
    if options.demo and replay is None:
        return USAGE
    session = Session(options.url, options.model, replay, None, DEMO_SPEED)
    app = PagedTop(session, look, readonly=options.readonly)
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.add_signal_handler(sign, app.exit, 128 + sign)
    try:
        code = await app.run_async()
    finally:
        await session.close()
    if replay and replay.report:
        print("\n".join(replay.report))
    if session.error:
        print(f"paged-top: error: the engine ended: {session.error}", file=sys.stderr)
        return 1
    if replay and replay.failure:
        print(f"paged-top: error: {replay.failure}", file=sys.stderr)
        return 1
    return code if code is not None else 1


async def _demo(options: argparse.Namespace, look: Look) -> int:
    from tui.demo import run_demo
    from tui.session import Session

    replay = _replay()
    if replay is None:
        return USAGE
    session = Session(options.url, options.model, replay, DEMO_MINUTE_SESSIONS, DEMO_SPEED)
    try:
        return await run_demo(session, replay, _size(DEMO_SIZE), look)
    finally:
        await session.close()


def _replay() -> Replay | None:
    import time

    from tui.replay import NoTrace, Replay, find_trace

    try:
        return Replay(find_trace(), time.monotonic)
    except NoTrace as error:
        print(f"paged-top: error: --demo: {error}", file=sys.stderr)
        return None


def _run(work: Coroutine[Any, Any, int]) -> int:
    """Run to the end; a termination signal cancels it, so that what was started is stopped."""

    async def guarded() -> int:
        task = asyncio.ensure_future(work)
        ended: list[int] = []

        def end(sign: int) -> None:
            ended.append(sign)
            task.cancel()

        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(sign, end, sign)
        try:
            return await task
        except asyncio.CancelledError:
            if ended:
                return 128 + ended[0]
            raise

    return asyncio.run(guarded())


def _variable(option: str) -> str:
    return ENVIRONMENT + option.removeprefix("--").upper()


def _size(default: tuple[int, int]) -> tuple[int, int]:
    """Columns and lines: of COLUMNS and LINES, of the terminal, or `default`."""
    return tuple(shutil.get_terminal_size(default))  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
