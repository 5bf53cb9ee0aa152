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
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
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
    whole,
    without_options,
)
from tui.sources.targets import HttpSettings, Target, distinct, fleet, header, kv_endpoint, server_urls, target, with_kv

if TYPE_CHECKING:
    from tui.app import PagedTop
    from tui.attached import Attached
    from tui.focus import Focus
    from tui.look import Look
    from tui.replay import Replay

INTERRUPTED = 130
GONE_SECONDS = 5  # to end in, when the terminal is gone
TERMINAL_SECONDS = 1.0  # between two looks at whether it is there
LAST_SECONDS = 60  # and when a signal asks for it: a replay reports first
DEMO_SIZE = (160, 48)
DEMO_SPEED = 6.0  # what two cores can serve: a queue that static leaves behind goes away
DEMO_MINUTE_SESSIONS = 120  # more than a minute serves: the load lasts to the end
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_THEMES = ("auto", "dark", "light", "colour-blind", "16", "mono")  # as `tui.terminal` has them
_SOURCES = ("auto", "steps", "metrics")
_PANELS = ("blocks", "batch", "sharing", "ledgers", "requests", "control")  # as `tui.focus` has them

OPTIONS: tuple[Option, ...] = (
    Option("url", "attach to this server, or to several: said again, between commas, or as a range of ports "
           "(host:8000-8009); without it an engine is started, and stopped at the end", server_urls, "URL", play=False,
           many=","),
    Option("fleet", "a file of servers: a line each, URL or range, perhaps a name and kv=tcp://host:port; # comments",
           Path, "FILE", play=False),
    Option("source", "what is read of one --url: steps of a paged-engine, metrics of any server (default: auto)",
           one_of(*_SOURCES), "NAME", "auto", play=False),
    Option("every", "seconds between two looks at metrics (default: 1)", number(0.2, 60.0), "SECONDS", 1.0,
           play=False),
    Option("kv_events", "where the one --url publishes its KV events, tcp://host:5557; after a comma where past ones "
           "can be had again; said again for each rank", kv_endpoint, "ENDPOINT", play=False, many=" "),
    Option("api_key", "sent to servers as a bearer token; the variable or a file hides it from `ps`", secret, "KEY",
           play=False),
    Option("api_key_file", "a file whose first key that is, unless the key is given", Path, "FILE", play=False),
    Option("header", "'Name: value' that is sent to servers with every request; said again for more", header, "HEADER",
           play=False, many="\n"),
    Option("ca_file", "certificates of the authorities that are believed, instead of the usual ones", Path, "FILE",
           play=False),
    Option("insecure", "do not check TLS certificates", default=False, play=False),
    Option("admin_key", "the engine's admin key; the variable or a file hides it from `ps`", secret, "KEY", play=False),
    Option("admin_key_file", "a file whose first key that is, unless the key is given", Path, "FILE", play=False),
    Option("model", "model of the engine that is started (default: smollm2-135m)", str, "NAME", play=False),
    Option("trace", "what a replay plays (default: traces/chat500.jsonl)", Path, "FILE", play=False),
    Option("speed", "how many times as fast as recorded (default: 1)", number(0.1, 1000.0), "X", 1.0, live=False),
    Option("step", "begin at this step, of servers at this look at their metrics", whole(0, 1 << 62), "N", live=False),
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
    Option("texts", "show what prompts and answers say where a server tells it; --no-texts: neither text nor token ids",
           default=True, play=False),
    Option("readonly", "never change the engine", default=False, play=False),
    Option("ascii", "draw with ASCII alone (default: by the terminal)"),
    Option("web", "serve the screen to browsers instead", default=False),
    Option("web_insecure", "let --web listen beyond loopback, though it asks nobody for a key", default=False),
)  # fmt: skip

_BY_NAME = {option.name: option for option in OPTIONS}
_KEYS = ("api_key", "admin_key")
_SECRET = tuple(_BY_NAME[name] for name in (*_KEYS, *(f"{key}_file" for key in _KEYS), "header"))


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
    if not play:
        _let_go(chosen, arguments, bool(os.environ.get(_BY_NAME["url"].variable) or file.get("url")))
    for option in OPTIONS:
        if option not in options:
            setattr(chosen, option.name, option.default)
    chosen.play = chosen.file if play else None
    for key in _KEYS:
        key_file = getattr(chosen, f"{key}_file")
        if getattr(chosen, key) is None and key_file is not None:
            with _naming(parser, _BY_NAME[f"{key}_file"].flag):
                setattr(chosen, key, secret_in(key_file))
    chosen.targets = _targets(parser, chosen)
    # One server has the admin key anyway, which opens its metrics too; of several each may be anybody's.
    key = chosen.api_key if chosen.api_key is not None or len(chosen.targets) > 1 else chosen.admin_key
    chosen.http = HttpSettings(key, chosen.admin_key, tuple(chosen.header or ()), chosen.ca_file, chosen.insecure)
    return parser, chosen


def _let_go(chosen: argparse.Namespace, arguments: Sequence[str], named: bool) -> None:
    """Servers that the command line names stand for those of the environment and the config file, not beside them;
    nor are KV events that are named there then of these. `named`: there is a server's address there."""
    said = {
        name
        for name in ("url", "fleet", "kv_events")
        if any(word == _BY_NAME[name].flag or word.startswith(f"{_BY_NAME[name].flag}=") for word in arguments)
    }
    if not said & {"url", "fleet"}:
        return
    others = {name for name in ("url", "fleet") if name not in said and getattr(chosen, name)}
    for name in others:
        setattr(chosen, name, None)
    if "kv_events" not in said and ("fleet" in said or others or named):
        chosen.kv_events = None


@contextmanager
def _naming(parser: Parser, flag: str) -> Iterator[None]:
    """Bad input of an option ends the program, and is told with its flag."""
    try:
        yield
    except argparse.ArgumentTypeError as error:
        parser.error(f"{flag}: {error}")


def _targets(parser: Parser, options: argparse.Namespace) -> tuple[Target, ...]:
    """The servers that are named, each once. With KV events of one, its metrics are what is read."""
    listed: tuple[Target, ...] = ()
    if options.fleet is not None:
        with _naming(parser, "--fleet"):
            listed = fleet(options.fleet)
    with _naming(parser, "--fleet" if listed else "--url"):
        targets = distinct((*map(target, options.url or ()), *listed))
    if options.kv_events:
        if len(targets) != 1:
            parser.error("--kv-events is of one --url; in a --fleet file each line has its own kv=tcp://host:port")
        with _naming(parser, "--kv-events"):
            targets = (with_kv(targets[0], (*targets[0].kv, *options.kv_events)),)
    if options.source == "metrics" and not targets and not (options.demo or options.web):
        parser.error("--source metrics is of a server that runs: name it with --url or --fleet")
    if options.source == "steps" and len(targets) > 1:
        parser.error("--source: steps are of one --url alone: several are read by their metrics")
    if any(one.kv for one in targets):
        if options.source == "steps":
            parser.error("--source: steps have all of KV memory in them; KV events are shown beside metrics")
        options.source = "metrics"
    return targets


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        return _main(argv)
    except KeyboardInterrupt:  # before anything ran
        return INTERRUPTED


def _main(argv: Sequence[str] | None) -> int:
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
    if options.targets and options.model:
        parser.error(f"--model is for an engine that is started; {_named_by(options)} names one that runs")
    if options.demo and len(options.targets) > 1:
        parser.error(f"--demo is of one engine, and {_named_by(options)} names {len(options.targets)}")
    if options.demo and options.source == "metrics":
        parser.error("--demo is of an engine whose steps are read: not with --source metrics or KV events")
    _check_tls(parser, options)
    if options.demo and options.readonly and not terminal:
        parser.error("--demo without a terminal switches modes, which --readonly forbids")
    if options.web:
        _check_web(parser, options)


def _named_by(options: argparse.Namespace) -> str:
    return "--fleet" if options.fleet is not None else "--url"


def _check_tls(parser: Parser, options: argparse.Namespace) -> None:
    """Authorities that can be read, or the warning that none is asked."""
    if options.insecure and options.ca_file is not None:
        parser.error("--insecure checks no certificates, and --ca-file says by whom they are: one of them")
    if options.ca_file is not None:
        import ssl

        try:
            ssl.create_default_context(cafile=options.ca_file)
        except ssl.SSLError:
            parser.error(f"--ca-file: {options.ca_file}: has no certificate that can be read (PEM)")
        except (OSError, ValueError) as error:
            parser.error(f"--ca-file: {options.ca_file}: {getattr(error, 'strerror', None) or error}")
    if options.http.unchecked(one.url for one in options.targets):
        print(
            "paged-top: warning: --insecure: certificates are not checked: whoever is in between can read the keys "
            "and answer instead",
            file=sys.stderr,
        )


def _check_web(parser: Parser, options: argparse.Namespace) -> None:
    """Beyond loopback whoever comes is at the keys: that must be meant."""
    from tui.hosts import is_beyond_loopback

    try:
        if not is_beyond_loopback(options.web_host):
            return
    except (OSError, UnicodeError) as error:
        parser.error(f"--web-host: {options.web_host}: {str(getattr(error, 'strerror', None) or error).lower()}")
    whoever = f"--web-host: whoever reaches {options.web_host or 'this machine'}"
    if not options.web_insecure:
        parser.error(
            f"{whoever} would be at the keys of this screen, for --web asks for no password; leave it on 127.0.0.1 "
            "with a proxy that does in front (see docs/security.md), or say --web-insecure"
        )
    can = "see this screen and record to files here"
    if not options.readonly and not options.play:
        can = "steer the engine (unless --readonly), see this screen and record to files here"
    print(f"paged-top: warning: --web-insecure: {whoever} can {can}", file=sys.stderr)


def _chosen(options: argparse.Namespace, look: Look, terminal: bool) -> Coroutine[Any, Any, int]:
    if options.demo and not terminal:
        return _demo(options, look)
    if options.once or options.json or not terminal:
        if options.play:
            return _play_once(options)(options.play, options.step, options.json, _size((80, 24)), look, _focus(options))
        from tui.once import run_once

        size, focus = _size((80, 24)), _focus(options)
        if len(options.targets) > 1 or options.source == "metrics":
            from tui.sources.once import run_servers_once

            return run_servers_once(options.targets, options.http, options.every, options.json, size, look, focus)
        one = options.targets[0] if options.targets else None
        every = None if options.source == "steps" else options.every
        return run_once(one, options.model, options.json, size, look, focus, options.http, every)
    return _app(options, look)


async def _app(options: argparse.Namespace, look: Look) -> int:
    from tui.app import PagedTop

    attached = _attached(options)
    if isinstance(attached, int):
        return attached
    app = PagedTop(attached, look, readonly=options.readonly, frames=options.frames, focus=_focus(options))
    _end_on_signals(app)
    try:
        with _terminal_watched():
            code = await app.run_async()
    finally:
        await attached.close()
    for words in attached.finished:
        print(f"paged-top: {words}", file=sys.stderr)
    if attached.report:
        print("\n".join(attached.report))
    if attached.error:
        print(f"paged-top: error: {attached.error}", file=sys.stderr)
        return 1
    return code if code is not None else 1


def _end_on_signals(app: PagedTop) -> None:
    """Let signals end the app, and an alarm the program where the app hangs, writing to a terminal that is gone: what
    it was attached to is closed in any case. A second alarm ends the process."""
    loop = asyncio.get_running_loop()

    def end(sign: int, frame: object) -> None:
        def give_up(alarm: int, frame: object) -> None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(GONE_SECONDS)
            raise SystemExit(128 + sign)

        signal.signal(signal.SIGALRM, give_up)
        signal.alarm(GONE_SECONDS if sign == signal.SIGHUP else LAST_SECONDS)
        loop.call_soon_threadsafe(app.exit, 128 + sign)

    _on_signals(end)


def _on_signals(end: Callable[[int, Any], Any] | signal.Handlers) -> None:
    """Not by the loop, which may hang, and forgets what it has not yet told when another is to hear it."""
    for sign in _ENDING:
        signal.signal(sign, end)


@contextmanager
def _terminal_watched() -> Iterator[None]:
    """Hang up where the terminal is gone: only a process that it controls is told by a signal. A thread looks, for the
    loop may hang then."""
    from tui.terminal import is_gone

    over = threading.Event()

    def watch() -> None:
        while not over.wait(TERMINAL_SECONDS):
            if is_gone(sys.__stdin__):
                os.kill(os.getpid(), signal.SIGHUP)
                return

    thread = threading.Thread(target=watch, name="terminal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _focus(options: argparse.Namespace) -> Focus:
    """Where the screen begins."""
    from tui.focus import Focus

    return Focus(panel=options.panel, expanded=True) if options.panel else Focus()


def _play_once(options: argparse.Namespace) -> Callable[..., Coroutine[Any, Any, int]]:
    """Of a recording of steps, or of servers."""
    from tui.recording import is_of_sources

    if is_of_sources(options.play):
        from tui.sources.play_once import play_servers_once

        return play_servers_once
    from tui.once import play_once

    return play_once


def _attached(options: argparse.Namespace) -> Attached | int:
    """What the screen is attached to, or the exit code where that cannot be."""
    from tui.attached import One
    from tui.session import Session

    if options.play:
        from tui.recording import RecordingError

        try:
            return _played(options)
        except RecordingError as error:
            print(f"paged-top play: error: {error}", file=sys.stderr)
            return USAGE
    if options.targets and not options.demo and (len(options.targets) > 1 or options.source != "steps"):
        from tui.sources.attach import Attach

        steps_first = options.source == "auto" and len(options.targets) == 1
        return Attach(options.targets, options.http, options.every, steps_first, texts=options.texts)
    replay = _replay(options.trace) if options.demo else None
    if options.demo and replay is None:
        return USAGE
    url, user = _address(options)
    session = Session(
        url, options.model, replay, None, DEMO_SPEED, trace=options.trace, http=options.http, user=user,
        texts=options.texts,
    )  # fmt: skip
    return One(session)


def _played(options: argparse.Namespace) -> Attached:
    """A recording of steps, or of servers. Raises RecordingError."""
    from tui.attached import One
    from tui.player import Player
    from tui.recording import is_of_sources
    from tui.session import Session

    if is_of_sources(options.play):
        from tui.sources.attach import Attach
        from tui.sources.player import SourcePlayer

        servers = SourcePlayer(options.play, options.speed)
        if options.step is not None:
            servers.pause()
            servers.seek(options.step)
        return Attach(player=servers)
    player = Player(options.play, options.speed)
    if options.step is not None:
        player.pause()
        player.seek(options.step)
    return One(Session(player=player))


def _address(options: argparse.Namespace) -> tuple[str | None, str]:
    """Of the one server that is named, if one is: its URL, and its user."""
    (one,) = options.targets or (None,)
    return (one.url, one.user) if one is not None else (None, "")


async def _demo(options: argparse.Namespace, look: Look) -> int:
    from tui.demo import run_demo
    from tui.session import Session

    replay = _replay(options.trace)
    if replay is None:
        return USAGE
    url, user = _address(options)
    session = Session(url, options.model, replay, DEMO_MINUTE_SESSIONS, DEMO_SPEED, http=options.http, user=user)
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

    own = None if options.targets or options.play else EngineProcess(options.model)
    for name in _KEYS:  # the pages' programs find them where nobody else can look
        if (key := getattr(options, name)) is not None:
            os.environ.pop(_BY_NAME[f"{name}_file"].variable, None)
            os.environ[_BY_NAME[name].variable] = key
    if options.header:
        os.environ[_BY_NAME["header"].variable] = "\n".join(f"{name}: {value}" for name, value in options.header)

    async def started() -> list[str]:
        command = [sys.executable, "-m", "tui.cli", *without_options(argv, _SECRET), "--no-web"]
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

        loop = asyncio.get_running_loop()

        def end(sign: int, frame: object) -> None:
            ended.append(sign)
            loop.call_soon_threadsafe(task.cancel)

        _on_signals(end)
        try:
            code = await task
        except asyncio.CancelledError:
            if not ended:
                raise
        finally:
            _on_signals(signal.SIG_IGN)  # it ends already
        return 128 + ended[0] if ended else code

    before = {sign: signal.getsignal(sign) for sign in _ENDING}
    try:
        return asyncio.run(guarded())
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def _size(default: tuple[int, int]) -> tuple[int, int]:
    """Columns and lines: of COLUMNS and LINES, of the terminal, or `default`."""
    return tuple(shutil.get_terminal_size(default))  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
