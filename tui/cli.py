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

from tui.command_line import BY_NAME, KEYS, SECRET, check, parse
from tui.options import USAGE, without_options

if TYPE_CHECKING:
    from tui.app import PagedTop
    from tui.attached import Attached
    from tui.cluster.attach import ClusterAttach
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
    check(parser, options, terminal)
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
    """Of a recording of steps, of servers, or of a cluster."""
    from tui.recording import is_of_cluster, is_of_sources

    if is_of_cluster(options.play):
        from tui.cluster.once import play_cluster_once

        return play_cluster_once
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
    if len(options.targets) == 1 and not options.demo and options.source != "metrics":
        return _engine_or_cluster(options)
    if options.targets and not options.demo:
        from tui.sources.attach import Attach

        return Attach(options.targets, options.http, options.every, texts=options.texts)
    replay = _replay(options.trace) if options.demo else None
    if options.demo and replay is None:
        return USAGE
    url, user = _address(options)
    session = Session(
        url, options.model, replay, None, DEMO_SPEED, trace=options.trace, http=options.http, user=user,
        texts=options.texts,
    )  # fmt: skip
    return One(session)


def _engine_or_cluster(options: argparse.Namespace) -> Attached:
    """One server: what it is, it tells."""
    from tui.attached import One
    from tui.cluster.either import Either
    from tui.session import Session
    from tui.sources.attach import Attach

    (one,) = options.targets

    def engine() -> Attached:
        if options.source == "auto":
            return Attach((one,), options.http, options.every, steps_first=True, texts=options.texts)
        return One(Session(one.url, trace=options.trace, http=options.http, user=one.user, texts=options.texts))

    def cluster() -> ClusterAttach:
        from tui.cluster.attach import ClusterAttach

        return ClusterAttach(one, options.http, texts=options.texts)

    return Either(engine, cluster)


def _played(options: argparse.Namespace) -> Attached:
    """A recording of steps, of servers, or of a cluster. Raises RecordingError."""
    from tui.attached import One
    from tui.player import Player
    from tui.recording import is_of_cluster, is_of_sources
    from tui.session import Session

    if is_of_cluster(options.play):
        from tui.cluster.attach import ClusterAttach
        from tui.cluster.player import ClusterPlayer

        cluster = ClusterPlayer(options.play, options.speed)
        if options.step is not None:
            cluster.pause()
            cluster.seek(options.step)
        return ClusterAttach(None, player=cluster)
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
    for name in KEYS:  # the pages' programs find them where nobody else can look
        if (key := getattr(options, name)) is not None:
            os.environ.pop(BY_NAME[f"{name}_file"].variable, None)
            os.environ[BY_NAME[name].variable] = key
    if options.header:
        os.environ[BY_NAME["header"].variable] = "\n".join(f"{name}: {value}" for name, value in options.header)

    async def started() -> list[str]:
        command = [sys.executable, "-m", "tui.cli", *without_options(argv, SECRET), "--no-web"]
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
