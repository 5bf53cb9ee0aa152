"""`--once`: one frame as text, or the totals as JSON, then the end. It needs no terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, TextIO

import msgspec

from engine.protocol import LiveLoad, Snapshot
from tui import scene
from tui.client import HttpEngine
from tui.engine_api import ACluster, Missing, NotAnEngine, Unreachable
from tui.engine_process import EngineFailed, EngineProcess
from tui.feed import Feed
from tui.focus import FIRST_FOCUS, Focus
from tui.forward_player import ForwardPlayer
from tui.loads import LoadReader
from tui.look import Look
from tui.panels.line import text_of
from tui.player import Player
from tui.recording import RecordingError
from tui.session import Session
from tui.sources.targets import NO_SETTINGS, HttpSettings, Target
from tui.themes import MONO
from tui.view import Frame, Status

FIRST_STATE = 60.0  # seconds that a state may take to come
OBSERVED = 1.5  # seconds of the stream that a frame has seen, so that its rates and steps are measured
FAILED = 1
BAD_INPUT = 2


def frame_text(frame: Frame, width: int, height: int, look: Look) -> str:
    """The screen as plain text, line ends trimmed."""
    return "\n".join(text_of(line).rstrip() for line in scene.draw(frame, width, height, look))


def write_frame(frame: Frame, width: int, height: int, look: Look, out: TextIO) -> None:
    """The screen, in colour where `out` is a terminal."""
    if look.theme is MONO or not out.isatty():
        print(frame_text(frame, width, height, look), file=out)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, width=width)
    for line in scene.draw(frame, width, height, look):
        console.print(Text.assemble(*((text, look.style(role)) for text, role in line)), soft_wrap=True)


def totals_json(snapshot: Snapshot, loads: tuple[LiveLoad, ...] | None = None) -> str:
    """A snapshot as the engine told it, without the list of its blocks; of an engine that lives with its `loads`."""
    totals = msgspec.to_builtins(snapshot)
    del totals["blocks"]
    if loads is not None:
        totals["loads"] = msgspec.to_builtins(loads)
    return msgspec.json.format(msgspec.json.encode(totals), indent=2).decode()


def fail(message: str) -> int:
    print(f"paged-top: error: {message}", file=sys.stderr)
    return FAILED


async def run_once(
    target: Target | None,
    model: str | None,
    json: bool,
    size: tuple[int, int],
    look: Look,
    focus: Focus = FIRST_FOCUS,
    http: HttpSettings = NO_SETTINGS,
    every: float | None = None,
) -> int:
    """Print once and return the exit code.

    What is no paged-engine is read by its metrics, with `every` seconds between two looks; None: it is an error.
    """
    own = EngineProcess(model) if target is None else None
    url, user = ("", "") if target is None else (target.url, target.user)
    engine: HttpEngine | None = None
    try:
        if own:
            print("paged-top: starting an engine", file=sys.stderr)
            try:
                url = await own.start()
            except (EngineFailed, OSError) as error:
                return fail(f"the engine did not start: {error}")
        engine = HttpEngine(url, http, user)
        snapshot = await engine.snapshot()
        if json:
            print(totals_json(snapshot, await _loads(engine)))
        else:
            write_frame(await _observed(engine, url, focus, http.unchecked((url,))), *size, look, sys.stdout)
    except ACluster as error:
        if target is None:
            return fail(f"{url}: {error}")
        from tui.cluster.once import run_cluster_once

        return await run_cluster_once(target, json, size, look, focus, http)
    except NotAnEngine as error:
        if target is None or every is None:
            return fail(f"{url}: {error}")
        from tui.sources.once import run_other_once

        return await run_other_once(target, http, every, json, size, look, focus, error)
    except Unreachable as error:
        return fail(f"{url}: {error}")
    finally:
        if engine:
            await engine.close()
        if own:
            await own.stop()
    return 0


async def _observed(engine: HttpEngine, url: str, focus: Focus, unchecked: bool) -> Frame:
    """A frame after the stream was followed for a moment. Raises Unreachable where no state comes."""
    feed = Feed(engine, time.monotonic)
    following = asyncio.create_task(feed.run())
    try:
        waited = 0.0
        while feed.fold is None and waited < FIRST_STATE:  # a busy engine answers between two steps
            await asyncio.sleep(0.05)
            waited += 0.05
        if feed.fold is None:
            raise Unreachable(feed.link.detail or f"no state within {FIRST_STATE:.0f} s")
        await asyncio.sleep(OBSERVED)
        loads = await _loads(engine)
        status = Status(link=feed.link, target=url, readonly=True, unchecked=unchecked)
        return Frame(status, feed.view(), focus, loads=loads)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def _loads(engine: HttpEngine) -> tuple[LiveLoad, ...]:
    """What load generators tell now; nothing where the engine takes no such word."""
    reader = LoadReader(engine)
    with suppress(Missing):
        await reader.read()
    return reader.loads


def say_of_play(message: str) -> None:
    print(f"paged-top play: {message}", file=sys.stderr)


@asynccontextmanager
async def played_to(player: ForwardPlayer[Any], step: int | None) -> AsyncIterator[None]:
    """The recording stands where a person asked for, or at its end; it is closed afterwards."""
    if step is not None:
        player.pause()
        player.seek(step)
    following = asyncio.create_task(player.run())
    try:
        while not (player.ended if step is None else player.arrived) and not following.done():
            await asyncio.sleep(0.01)
        if following.done():
            following.result()  # it ends by a fault of this program alone
        if player.ended and not player.complete:
            say_of_play(player.note)
        yield
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await player.close()


async def play_once(
    path: Path, step: int | None, json: bool, size: tuple[int, int], look: Look, focus: Focus = FIRST_FOCUS
) -> int:
    """Print the state of a recording after a step, or at its end, and return the exit code."""
    try:
        player = Player(path, inf)
    except RecordingError as error:
        say_of_play(f"error: {error}")
        return BAD_INPUT
    session = Session(player=player)
    if step is not None:
        player.pause()
        player.seek(step)
    following = asyncio.create_task(session.run())
    try:
        while not (player.ended if step is None else player.arrived) and not following.done():
            await asyncio.sleep(0.01)
        if player.ended and not player.complete:
            say_of_play(player.note)
        assert session.feed is not None
        assert session.feed.fold is not None
        shown = session.feed.fold.seq
        if session.feed.found:
            say_of_play(f"{session.feed.found} after record {shown:,}")
        if step is not None and shown != step:
            say_of_play(f"step {step:,} is not in it: this is {shown:,}")
        if json:
            print(totals_json(session.feed.fold.to_snapshot()))
        else:
            status = Status(link=session.link, target=session.target, playing=session.playing, readonly=True)
            write_frame(Frame(status, session.view(), focus), *size, look, sys.stdout)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await session.close()
    return 0
