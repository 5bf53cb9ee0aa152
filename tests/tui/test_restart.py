"""The core of a real engine is killed: the screen says so, why, and that it is there again, and folds its new life.

And where its server is told to end, that it takes no more requests.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import httpx

from tui.child import Child, command
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


async def test_a_server_that_lets_its_last_requests_end_is_not_shown_as_live(monkeypatch):
    monkeypatch.setattr("tui.health.EVERY", 0.02)
    serve = ["serve", "--port", "0", "--model", "tiny", "--drain-timeout", "30"]
    server = await Child.start([*command("paged-engine", "engine.cli"), *serve])
    following = session = None
    try:
        await until(lambda: server.exit_code is not None or any("serving tiny" in line for line in server.output))
        url = re.search(r"http://\S+", server.output[-1])[0]
        session = Session(url)
        following = asyncio.create_task(session.run())
        await until(lambda: session.link.phase == "live")
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            body = {"model": "tiny", "prompt": "a", "max_tokens": 4000, "ignore_eos": True}
            asking = asyncio.create_task(http.post("/v1/completions", json=body))
            await until(lambda: session.feed.fold.requests)
            assert session.link.unready == ""
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: session.link.unready or asking.done())
            assert (session.link.phase, session.link.unready) == ("live", "the server is shutting down")
            assert not asking.done()
            await http.delete(f"/engine/requests/{next(iter(session.feed.fold.requests))}")
            await asking
        assert await asyncio.wait_for(server.wait(), 60) == 0
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await session.close()
        await server.stop()
