"""An engine of loadgen's own is waited for, told about when it fails, and always stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadgen.engine_process import EngineProcess, EngineStartError, engine_command, peak_rss, process_tree

SERVER = """
import http.server, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
class Health(http.server.BaseHTTPRequestHandler):
    ready = time.monotonic() + 0.5
    def do_GET(self):
        self.send_response(200 if time.monotonic() > self.ready else 503)
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Health)
print("child", child.pid, flush=True)
print("the hub is at http://127.0.0.1:9", flush=True)  # an address that is not the engine's
print(f"serving it at http://127.0.0.1:{server.server_port} (float32)", file=sys.stderr, flush=True)
server.serve_forever()
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def child_of(engine: EngineProcess) -> int:
    (line,) = (line for line in engine.output_tail() if line.startswith("child"))
    return int(line.split()[1])


async def test_started_measured_and_stopped_with_its_children() -> None:
    said: list[str] = []
    async with EngineProcess([], said.append, [sys.executable, "-c", SERVER]) as engine:
        assert engine.url.startswith("http://127.0.0.1:")
        assert engine.alive
        child = child_of(engine)
        assert running(child)
        engine.measure()
        assert engine.peak_rss_bytes is not None
        assert engine.peak_rss_bytes > 2**20
    assert not engine.alive
    for _ in range(100):
        if not running(child):
            break
        await asyncio.sleep(0.05)
    assert not running(child)
    assert "starting an engine" in said[0]
    assert engine.url in said[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells children of a parent's death on Linux")
def test_stopped_when_loadgen_is_killed() -> None:
    code = (
        "import asyncio, sys\nfrom loadgen.engine_process import EngineProcess\n"
        "async def main():\n"
        f"    async with EngineProcess([], lambda _: None, [sys.executable, '-c', {SERVER!r}]) as engine:\n"
        "        print(engine._process.pid, flush=True)\n        await asyncio.sleep(600)\nasyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as loadgen:
        assert loadgen.stdout is not None
        engine = int(loadgen.stdout.readline())
        assert running(engine)
        loadgen.send_signal(signal.SIGKILL)
    while running(engine):
        time.sleep(0.01)


async def test_stopped_when_the_work_fails() -> None:
    with pytest.raises(RuntimeError, match="work"):
        async with EngineProcess([], lambda _: None, [sys.executable, "-c", SERVER]) as engine:
            raise RuntimeError("work")
    assert not engine.alive


async def test_its_own_words_when_it_ends_early() -> None:
    command = [sys.executable, "-c", "import sys; print('no such model: x', file=sys.stderr); sys.exit(2)"]
    with pytest.raises(EngineStartError, match="ended with exit code 2 before it was ready") as caught:
        async with EngineProcess([], lambda _: None, command):
            pass
    assert "no such model: x" in str(caught.value)


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(EngineStartError, match="cannot be started"):
        async with EngineProcess([], lambda _: None, ["/no/such/engine"]):
            pass


async def test_cancelled_while_it_starts() -> None:
    command = [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)"]
    engine = EngineProcess([], lambda _: None, command)
    task = asyncio.create_task(engine.__aenter__())
    while not engine.output_tail():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not engine.alive


def test_the_command_is_the_engines_on_a_free_port() -> None:
    command = engine_command(["--model", "tiny"])
    assert Path(command[0]).name == "paged-engine"
    assert command[1:] == ["serve", "--port", "0", "--drain-timeout", "0", "--model", "tiny"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_of_this_process() -> None:
    assert os.getpid() in process_tree(os.getpid())
    assert (peak_rss([os.getpid()]) or 0) > 2**20
    assert peak_rss([2**30]) is None
