"""`--web` as a program: pages show the screen and take keys, who may ask for them, and nothing outlives it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

RECORDING = Path(__file__).with_name("recording.jsonl.gz")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PAGED_TOP_")}


def command(port, *arguments):
    return [sys.executable, "-m", "tui.cli", "play", str(RECORDING), "--web-port", str(port), *arguments]


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@asynccontextmanager
async def serving(port, *arguments):
    """The server as an environment variable asks for it, which its pages' programs see too."""
    server = await asyncio.create_subprocess_exec(
        *command(port, *arguments),
        env={**CLEAN, "PAGED_TOP_WEB": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        line = await asyncio.wait_for(server.stderr.readline(), 30)
        assert line.decode() == f"paged-top: http://127.0.0.1:{port} (Ctrl-C ends it)\n"
        yield server
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()


async def text_of(screen, words):
    """What a page is sent, until it has said some words."""
    seen = ""
    while words not in seen:
        message = await asyncio.wait_for(screen.receive(), 30)
        assert message.type == aiohttp.WSMsgType.BINARY, (message, seen[-500:])
        seen = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", seen + message.data.decode())
    return seen


def programs(server):
    listed = ["ps", "-ww", "--ppid", str(server.pid), "-o", "pid=,args="]
    return [
        line for line in subprocess.run(listed, capture_output=True, text=True).stdout.splitlines() if "no-web" in line
    ]


async def test_pages_show_the_screen_take_keys_and_end_with_the_server(port):
    async with serving(port) as server, aiohttp.ClientSession() as client:
        async with client.get(f"http://localhost:{port}/") as reply:
            page = await reply.text()
        assert f'"ws://localhost:{port}/ws"' in page  # the host that the browser knows
        assert not re.search(r'(src|href)="?https?://', page)
        url = f"http://127.0.0.1:{port}/ws?width=120&height=36"
        async with client.ws_connect(url) as first, client.ws_connect(url, origin=f"http://127.0.0.1:{port}") as second:
            await text_of(first, "smollm2-135m")
            await first.send_json(["stdin", "?"])
            await text_of(first, "the screen")
            await text_of(second, "smollm2-135m")
            assert len(programs(server)) == 2
            await first.send_json(["stdin", "q"])
            while not first.closed:
                await asyncio.wait_for(first.receive(), 30)
            server.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(server.wait(), 30) == 0
    assert not programs(server)


async def test_a_page_of_another_site_cannot_press_keys(port):
    async with serving(port) as server, aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.ws_connect(f"http://127.0.0.1:{port}/ws", origin="http://elsewhere.example")
        assert not programs(server)


async def test_another_name_that_leads_to_loopback_is_kept_out(port):
    async with serving(port, "--web-name", "top.example") as server, aiohttp.ClientSession() as client:
        for host, status in (
            ("evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("0.0.0.0", 403),
            (f"evil.example:{port}", 403),
            (f"localhost:{port}", 200),
            ("[::1]", 200),
            ("127.0.0.9", 200),
        ):
            for path in ("/", "/static/css/xterm.css"):
                async with client.get(f"http://127.0.0.1:{port}{path}", headers={"Host": host}) as reply:
                    assert (host, path, reply.status) == (host, path, status)
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.ws_connect(f"http://127.0.0.1:{port}/ws", headers=rebound)
        assert not programs(server)
        proxied = {"Host": "top.example", "X-Forwarded-Proto": "https"}
        async with client.get(f"http://127.0.0.1:{port}/", headers=proxied) as reply:
            assert '"wss://top.example/ws"' in await reply.text()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_it_does_not_listen_beyond_loopback_unless_that_is_meant(port, host):
    done = subprocess.run(
        command(port, "--web", f"--web-host={host}"), capture_output=True, text=True, env=CLEAN, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "error: --web-host: whoever reaches" in line
    assert "proxy" in line
    assert "--web-insecure" in line


@pytest.mark.parametrize("readonly", [False, True])
async def test_beyond_loopback_it_warns_who_may_do_what(port, readonly):
    arguments = ["--web", "--web-host", "0.0.0.0", "--web-port", str(port), "--url", "http://127.0.0.1:9"]
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tui.cli", *arguments, *(["--readonly"] if readonly else [])),
        env={**CLEAN, "PAGED_TOP_WEB_INSECURE": "1"},
        stderr=subprocess.PIPE,
    )
    try:
        warned = (await asyncio.wait_for(server.stderr.readline(), 30)).decode()
        await asyncio.wait_for(server.stderr.readline(), 30)
        assert warned.startswith("paged-top: warning: --web-insecure: --web-host: whoever reaches 0.0.0.0 can ")
        assert ("steer the engine (unless --readonly)" in warned) == (not readonly)
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{port}/", headers={"Host": "any.example"}) as reply,
        ):
            assert reply.status == 200
        server.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.wait(), 30) == 0
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()


async def test_a_closed_page_ends_its_program(port):
    async with serving(port) as server, aiohttp.ClientSession() as client:
        async with client.ws_connect(f"http://127.0.0.1:{port}/ws") as screen:
            await text_of(screen, "smollm2-135m")
            assert programs(server)
        async with asyncio.timeout(30):
            while programs(server):
                await asyncio.sleep(0.1)


async def test_the_key_of_an_engine_is_in_no_page_and_no_list_of_processes(port):
    asked = set()

    async def snapshot(request):
        asked.add(request.headers.get("Authorization"))
        return web.Response(status=401)

    app = web.Application()
    app.router.add_get("/engine/snapshot", snapshot)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    arguments = ["--url", f"http://127.0.0.1:{runner.addresses[0][1]}", "--admin-key", "s3cret", "--web"]
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tui.cli", "--web-port", str(port), *arguments), env=CLEAN, stderr=subprocess.PIPE
    )
    try:
        told = await asyncio.wait_for(server.stderr.readline(), 30)
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{port}/") as reply:
                page = await reply.text()
            async with client.ws_connect(f"http://127.0.0.1:{port}/ws?width=120&height=36") as screen:
                seen = await text_of(screen, "it refuses the key: HTTP 401")
                (program,) = programs(server)
        assert asked == {"Bearer s3cret"}
        assert not any("s3cret" in text for text in (page, seen, program, told.decode()))
        server.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.wait(), 30) == 0
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
        await runner.cleanup()


def test_an_address_that_cannot_be_had_is_told_in_a_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(command(port, "--web"), capture_output=True, text=True, env=CLEAN, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"paged-top: error: --web: 127.0.0.1:{port}: address already in use\n"
