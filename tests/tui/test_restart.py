"""The core of a real engine is killed: the screen says so, why, and that it is there again, and folds its new life."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tui.client import HttpEngine
from tui.session import Session
from tui.view import Frame, Status


def core_of(server):
    """The process of the engine's core."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return next(int(pid) for pid in children if b"core_process" in Path(f"/proc/{pid}/cmdline").read_bytes())


async def until(true):
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


async def test_an_own_engine_whose_core_is_killed_is_down_and_back():
    session = Session(model="tiny")
    following = asyncio.create_task(session.run())
    try:
        await until(lambda: session.link.phase == "live")
        before = session.feed.fold.engine
        os.kill(core_of(session._own.child.process.pid), signal.SIGKILL)
        await until(lambda: session.link.phase == "down")
        assert "SIGKILL" in session.link.detail
        await until(lambda: session.link.phase == "live")
        engine = session.feed.fold.engine
        assert (engine.restarts, engine.num_blocks) == (before.restarts + 1, before.num_blocks)
        assert engine.started > before.started
        assert session.link.news.startswith("engine restarted (1); away ")
        assert "SIGKILL" in session.link.news
        assert "; away " in session.link.news
        from tui.look import Look
        from tui.once import frame_text

        shown = frame_text(Frame(Status(session.link, "here"), session.view()), 200, 40, Look()).splitlines()
        assert "restarts 1" in shown[0]
        assert "engine restarted (1)" in shown[-1]
        assert session.error == ""
        other = HttpEngine(session.url)
        assert (await other.snapshot()).engine == engine
        await other.close()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await session.close()
