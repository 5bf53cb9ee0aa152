"""The `paged-top` command. Exit codes: 0 fine, 1 no usable engine, 2 bad input, 130 interrupted.

Heavy imports wait until something runs.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import shutil
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui.options import (
    USAGE,
    Option,
    Parser,
    add_options,
    config_path,
    number,
    one_of,
    read_config,
    secret,
    secret_in,
    server_url,
    whole,
    without_options,
)

if TYPE_CHECKING:
    from tui.app import PagedTop
    from tui.focus import Focus
    from tui.look import Look
    from tui.replay import Replay
    from tui.session import Session

INTERRUPTED = 130
GONE_SECONDS = 5  # to end in, when the terminal is gone
TERMINAL_SECONDS = 1.0  # between two looks at whether it is there
LAST_SECONDS = 60  # and when a signal asks for it: a replay reports first
DEMO_SIZE = (160, 48)
DEMO_SPEED = 6.0  # what two cores can serve: a queue that static leaves behind goes away
DEMO_MINUTE_SESSIONS = 120  # more than a minute serves: the load lasts to the end
_THEMES = ("auto", "dark", "light", "colour-blind", "16", "mono")  # as `tui.terminal` has them
_PANELS = ("blocks", "batch", "sharing", "ledgers", "requests", "control")  # as `tui.focus` has them

OPTIONS: tuple[Option, ...] = (
    Option("url", "attach to this engine; without it one is started, and stopped at the end", server_url, "URL",
           play=False),
    Option("admin_key", "the engine's admin key; the variable or a file hides it from `ps`", secret, "KEY", play=False),
    Option("admin_key_file", "a file whose first key that is, unless the key is given", Path, "FILE", play=False),
    Option("model", "model of the engine that is started (default: smollm2-135m)", str, "NAME", play=False),
    Option("trace", "what a replay plays (default: traces/chat500.jsonl)", Path, "FILE", play=False),
    Option("speed", "how many times as fast as recorded (default: 1)", number(0.1, 1000.0), "X", 1.0, live=False),
    Option("step", "begin at this step", whole(0, 1 << 62), "N", live=False),
    Option("theme", f"{', '.join(_THEMES)} (default: auto, by the terminal)", one_of(*_THEMES), "NAME", "auto"),
    Option("panel", f"begin with one panel over the whole screen: {', '.join(_PANELS)}", one_of(*_PANELS), "NAME"),
    Option("frames", "frames a second at most (default: 10)", number(0.5, 60.0), "N", 10.0),
    Option("web_host", "the address that --web listens on (default: 127.0.0.1)", str, "HOST", "127.0.0.1"),
    Option("web_name", "another name that browsers may call it by: of a proxy in front of it", str, "NAME"),
    Option("web_port", "and its port (default: 8080)", whole(1, 65535), "PORT", 8080),
    Option("config", "a file of options (default: ~/.config/paged-top/config.toml, if it exists)", Path, "FILE"),
    Option("demo", "also replay traces/chat500.jsonl against it", default=False, play=False),
    Option("once", "print one frame as text and exit; COLUMNS and LINES set its size", default=False),
    Option("json", "as --once, but the totals as JSON", default=False),
    Option("readonly", "never change the engine", default=False, play=False),
    Option("ascii", "draw with ASCII alone (default: by the terminal)"),
    Option("web", "serve the screen to browsers instead", default=False),
    Option("insecure", "let --web listen beyond loopback, though it asks nobody for a key", default=False),
)  # fmt: skip

_KEY, _KEY_FILE = (option for option in OPTIONS if option.name in ("admin_key", "admin_key_file"))


def make_parser(play: bool = False) -> Parser:
    """The command line of `paged-top`, or of `paged-top play`; every option is an environment variable too."""
    parser = Parser(
        prog="paged-top play" if play else "paged-top",
        description="Show a recording: pause, step and jump through it."
        if play
        else "Watch a paged-engine: every KV block, every step's batch, what sharing saves. "
        "`paged-top play FILE` shows a recording.",
        epilog="Each option is also an environment variable, named in brackets, and a line of the config file "
        '(theme = "light"). Without a terminal it prints once.',
        allow_abbrev=False,
    )
    if play:
        parser.add_argument("file", metavar="FILE", type=Path, help="a recording, .jsonl or .jsonl.gz")
    return parser


def parse(argv: Sequence[str]) -> tuple[Parser, argparse.Namespace]:
    """The options as given, or as the environment or the config file has them. Exits with 2 on bad input."""
    play = list(argv[:1]) == ["play"]
    arguments = list(argv[1:] if play else argv)
    parser = make_parser(play)
    options = tuple(option for option in OPTIONS if (option.play if play else option.live))
    first = Parser(prog=parser.prog, add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path, default=None)
    named = first.parse_known_args(arguments)[0].config or os.environ.get("PAGED_TOP_CONFIG")
    path = Path(named) if named else config_path(os.environ)
    file: dict[str, Any] = {}
    if named or path.exists():
        try:
            file = read_config(path, OPTIONS)
        except argparse.ArgumentTypeError as error:
            parser.error(f"--config: {error}" if named else str(error))
    add_options(parser, options, file)
    chosen = parser.parse_args(arguments)
    for option in OPTIONS:
        if option not in options:
            setattr(chosen, option.name, option.default)
    chosen.play = chosen.file if play else None
    if chosen.admin_key is None and chosen.admin_key_file is not None:
        try:
            chosen.admin_key = secret_in(chosen.admin_key_file)
        except argparse.ArgumentTypeError as error:
            parser.error(f"--admin-key-file: {error}")
    return parser, chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was started with that one closed
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    parser, options = parse(argv)
    browser = "TEXTUAL_DRIVER" in os.environ  # a page of --web: there is no terminal, but a screen
    terminal = browser or (sys.stdin.isatty() and sys.stdout.isatty())
    _check(parser, options, terminal)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if browser:
        from tui.child import die_with_parent

        die_with_parent()
    from tui.terminal import look

    screen = look(
        {**os.environ, "TERM": "xterm-256color"} if browser else os.environ,
        options.theme,
        options.ascii,
        "utf-8" if browser else sys.stdout.encoding or "",
    )
    try:
        code = _run(_web(options, argv) if options.web else _chosen(options, screen, terminal))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        print(f"paged-top: error: standard output: {error.strerror}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """What is still to be written goes nowhere, so that the interpreter does not fail over it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check(parser: Parser, options: argparse.Namespace, terminal: bool) -> None:
    """Options that do not go together."""
    for one, other in (("demo", "once"), ("demo", "json"), ("web", "once"), ("web", "json"), ("web", "demo")):
        if getattr(options, one) and getattr(options, other):
            parser.error(f"--{one} and --{other} exclude each other")
    if options.url and options.model:
        parser.error("--model is for an engine that is started; --url names one that runs")
    if options.demo and options.readonly and not terminal:
        parser.error("--demo without a terminal switches modes, which --readonly forbids")
    if options.web:
        _check_web(parser, options)


def _check_web(parser: Parser, options: argparse.Namespace) -> None:
    """Beyond loopback whoever comes is at the keys: that must be meant."""
    from tui.hosts import is_beyond_loopback

    try:
        if not is_beyond_loopback(options.web_host):
            return
    except (OSError, UnicodeError) as error:
        parser.error(f"--web-host: {options.web_host}: {str(getattr(error, 'strerror', None) or error).lower()}")
    whoever = f"--web-host: whoever reaches {options.web_host or 'this machine'}"
    if not options.insecure:
        parser.error(
            f"{whoever} would be at the keys of this screen, for --web asks for no password; leave it on 127.0.0.1 "
            "with a proxy that does in front (see docs/security.md), or say --insecure"
        )
    can = "see this screen and record to files here"
    if not options.readonly and not options.play:
        can = "steer the engine (unless --readonly), see this screen and record to files here"
    print(f"paged-top: warning: --insecure: {whoever} can {can}", file=sys.stderr)


def _chosen(options: argparse.Namespace, look: Look, terminal: bool) -> Coroutine[Any, Any, int]:
    if options.demo and not terminal:
        return _demo(options, look)
    if options.once or options.json or not terminal:
        if options.play:
            from tui.once import play_once

            return play_once(options.play, options.step, options.json, _size((80, 24)), look, _focus(options))
        from tui.once import run_once

        size, focus = _size((80, 24)), _focus(options)
        return run_once(options.url, options.model, options.json, size, look, focus, options.admin_key)
    return _app(options, look)


async def _app(options: argparse.Namespace, look: Look) -> int:
    from tui.app import PagedTop

    session = _session(options)
    if isinstance(session, int):
        return session
    app = PagedTop(session, look, readonly=options.readonly, frames=options.frames, focus=_focus(options))
    _end_on_signals(app)
    watching = asyncio.create_task(_watch_terminal())
    try:
        code = await app.run_async()
    finally:
        watching.cancel()
        app.recorder.stop()
        await session.close()
    for words in app.recorder.finished:
        print(f"paged-top: {words}", file=sys.stderr)
    replay = session.replay
    if replay and replay.report:
        print("\n".join(replay.report))
    if session.error:
        print(f"paged-top: error: {session.error}", file=sys.stderr)
        return 1
    if replay and replay.failure:
        print(f"paged-top: error: {replay.failure}", file=sys.stderr)
        return 1
    return code if code is not None else 1


def _end_on_signals(app: PagedTop) -> None:
    """Let signals end the app, and an alarm the process where the app hangs, writing to a terminal that is gone."""
    loop = asyncio.get_running_loop()

    def end(sign: int, frame: object) -> None:
        signal.alarm(GONE_SECONDS if sign == signal.SIGHUP else LAST_SECONDS)
        loop.call_soon_threadsafe(app.exit, 128 + sign)

    for sign in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.remove_signal_handler(sign)
        signal.signal(sign, end)  # not by the loop, which may hang


async def _watch_terminal() -> None:
    """Hang up where the terminal is gone: only a process that it controls is told by a signal."""
    from tui.terminal import is_gone

    while not is_gone(sys.__stdin__):
        await asyncio.sleep(TERMINAL_SECONDS)
    signal.raise_signal(signal.SIGHUP)


def _focus(options: argparse.Namespace) -> Focus:
    """Where the screen begins."""
    from tui.focus import Focus

    return Focus(panel=options.panel, expanded=True) if options.panel else Focus()


def _session(options: argparse.Namespace) -> Session | int:
    """What the screen is attached to, or the exit code where that cannot be."""
    from tui.session import Session

    if options.play:
        from tui.player import Player
        from tui.recording import RecordingError

        try:
            player = Player(options.play, options.speed)
        except RecordingError as error:
            print(f"paged-top play: error: {error}", file=sys.stderr)
            return USAGE
        if options.step is not None:
            player.pause()
            player.seek(options.step)
        return Session(player=player)
    replay = _replay(options.trace) if options.demo else None
    if options.demo and replay is None:
        return USAGE
    return Session(
        options.url, options.model, replay, None, DEMO_SPEED, trace=options.trace, admin_key=options.admin_key
    )


async def _demo(options: argparse.Namespace, look: Look) -> int:
    from tui.demo import run_demo
    from tui.session import Session

    replay = _replay(options.trace)
    if replay is None:
        return USAGE
    key = options.admin_key
    session = Session(options.url, options.model, replay, DEMO_MINUTE_SESSIONS, DEMO_SPEED, admin_key=key)
    try:
        return await run_demo(session, replay, _size(DEMO_SIZE), look)
    finally:
        await session.close()


def _replay(trace: Path | None) -> Replay | None:
    import time

    from tui.replay import NoTrace, Replay, find_trace

    try:
        return Replay(trace or find_trace(), time.monotonic)
    except NoTrace as error:
        print(f"paged-top: error: --demo: {error}", file=sys.stderr)
        return None


async def _web(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Serve pages: without --url all of them show one engine, which is started here."""
    from tui.engine_process import EngineFailed, EngineProcess
    from tui.hosts import name_in
    from tui.web import NoWeb, serve

    own = None if options.url or options.play else EngineProcess(options.model)
    if options.admin_key is not None:  # the pages' programs find it where nobody else can look
        os.environ.pop(_KEY_FILE.variable, None)
        os.environ[_KEY.variable] = options.admin_key

    async def started() -> list[str]:
        command = [sys.executable, "-m", "tui.cli", *without_options(argv, (_KEY, _KEY_FILE)), "--no-web"]
        if own is None:
            return command
        print("paged-top: starting an engine", file=sys.stderr)
        return [*command, "--model=", "--url", await own.start()]

    names = {name_in(name) for name in (options.web_host, options.web_name) if name}
    try:
        await serve(options.web_host, options.web_port, names, started)
    except NoWeb as error:
        print(f"paged-top: error: --web: {error}", file=sys.stderr)
        return 1
    except (EngineFailed, OSError) as error:
        print(f"paged-top: error: the engine did not start: {error}", file=sys.stderr)
        return 1
    finally:
        if own is not None:
            await own.stop()
    return 0


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


def _size(default: tuple[int, int]) -> tuple[int, int]:
    """Columns and lines: of COLUMNS and LINES, of the terminal, or `default`."""
    return tuple(shutil.get_terminal_size(default))  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
