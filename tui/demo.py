"""`--demo` without a terminal: a minute of the trace, modes switched half-way, one frame and the report at the end."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

from tui import figures
from tui.engine_api import Refused, Unreachable
from tui.history import quantile
from tui.look import Look
from tui.once import fail, write_frame
from tui.replay import Replay
from tui.session import Session
from tui.view import Frame, Status, View

FIRST_HALF, SECOND_HALF = 25.0, 35.0
PROGRESS_EVERY = 5.0
STOPPED = 130  # the exit code of a replay that was interrupted
OLD: dict[str, Any] = {"batching": "static", "allocation": "reserved"}
NEW: dict[str, Any] = {"batching": "continuous", "allocation": "paged"}


async def run_demo(session: Session, replay: Replay, size: tuple[int, int], look: Look) -> int:
    """Run it all and return the exit code."""
    running = asyncio.create_task(session.run())
    try:
        if not await _ready(session, running):
            return fail(session.error or f"{session.target}: {session.link.detail}")
        await _switch(session, OLD)
        await _watch(session, FIRST_HALF, running)
        if not replay.exit_code:
            await _switch(session, NEW)
            await _watch(session, SECOND_HALF, running)
        frame = Frame(Status(link=session.link, target=session.target, replay=replay.line), _still(session.view()))
        code = await replay.stop()
    except (Refused, Unreachable) as error:
        return fail(f"the engine did not take the change: {error}")
    except EngineEnded:
        return fail(session.error or "the engine ended")
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    print()
    write_frame(frame, *size, look, sys.stdout)
    print()
    if code == STOPPED:
        print("The minute is over: the replay was stopped, and reports what it measured.")
    print("\n".join(replay.report))
    if code is None:
        return fail("the replay never started")
    return fail(replay.failure) if replay.failure else 0


def _still(view: View | None) -> View | None:
    """A view whose blocks do not go on changing with the feed."""
    return replace(view, blocks=deepcopy(view.blocks)) if view else None


class EngineEnded(Exception):
    """The engine went away in the middle of the demo."""


async def _ready(session: Session, running: asyncio.Task[None]) -> bool:
    """Wait for the engine and its first snapshot, telling what it says; False if it will not come."""
    told = 0
    while not (session.feed and session.feed.fold):
        for line in session.log[told:]:
            print(line, flush=True)
        told = len(session.log)
        link = session.link
        gone = link.phase in ("foreign", "locked", "cluster") or (link.phase == "connecting" and link.detail)
        if running.done() or session.error or gone:
            return False
        await asyncio.sleep(0.1)
    return True


async def _switch(session: Session, changes: dict[str, Any]) -> None:
    accepted = await session.change(changes)
    control = accepted.control
    print(f"{control.batching} + {control.allocation} from step {accepted.step:,}", flush=True)


async def _watch(session: Session, seconds: float, running: asyncio.Task[None]) -> None:
    """Let it run, with a line of figures every few seconds."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(PROGRESS_EVERY, left))
        if session.error or running.done():
            raise EngineEnded
        if session.replay and session.replay.exit_code:
            return  # it failed: its report says why
        if view := session.view():
            print(_line(view), flush=True)


def _line(view: View) -> str:
    """Figures of the last seconds, as the screen has them; the batch counts rows that are held, too."""
    window = view.history.window(view.now - PROGRESS_EVERY, view.now)
    in_batch = sum(state.status != "waiting" for state in view.requests.values())
    return (
        f"  step {view.seq:>7,}   {in_batch:>3} in the batch, {view.queue.length:>3} waiting"
        f"   internal waste {figures.percent(window.internal_share):>6}"
        f"   output {figures.count(window.per_second(window.output_tokens)):>5} tok/s"
        f"   TTFT p50 {figures.seconds(quantile(window.ttft, 0.5)):>6}"
    )
