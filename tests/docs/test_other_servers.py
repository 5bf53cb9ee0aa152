"""docs/other-servers.md: its commands work against servers that stand in, and its recordings play to their ends."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import pictures
from servers.dialects import DIALECTS
from tests.servers.kv_publisher import KvPublisher
from tests.servers.stand_in import StandIn
from tui.sources.player import SourcePlayer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "other-servers.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines() if line.strip()]
SERVE = "paged-engine serve"


async def run(command: str, folder: Path) -> tuple[int, str, str]:
    """Without a terminal: it prints once."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_shell(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(100):
        out, errors = await process.communicate()
    return process.returncode or 0, out.decode(), errors.decode()


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith(SERVE)])
async def test_a_command_shows_the_servers_that_are_there(command: str, tmp_path: Path) -> None:
    async with StandIn("vllm") as one, StandIn("sglang") as other:
        with KvPublisher(replay=True) as publisher:
            (tmp_path / "docs").symlink_to(ROOT / "docs")
            (tmp_path / "fleet.txt").write_text(f"{one.url} chat kv={publisher.endpoint}\n{other.url}  # another\n")
            here = command.replace("http://127.0.0.1:8000", one.url)
            here = here.replace(
                "tcp://127.0.0.1:5557,tcp://127.0.0.1:5558", f"{publisher.endpoint},{publisher.replay_endpoint}"
            )
            code, out, errors = await run(here, tmp_path)
    assert code == 0, errors
    assert "vllm" in out.lower() or "chat" in out
    assert "Traceback" not in errors


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(SERVE)])
async def test_our_engine_publishes_as_it_is_told(command: str, tmp_path: Path) -> None:
    free = re.sub(r":555\d", ":0", command) + " --model tiny --port 0"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_exec(
        *free.split(), env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    told = ""
    try:
        async with asyncio.timeout(100):
            while "serving" not in told or "KV events" not in told:  # by two ways: either may come first
                line = await process.stdout.readline()
                assert line, told
                told += line.decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
    assert re.search(r"KV events .* tcp://127\.0\.0\.1:[1-9]", told)


def test_the_table_has_every_server_and_where_its_metrics_are() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for dialect in DIALECTS:
        assert any(row.startswith(f"| {dialect.title} |") and dialect.paths[0] in row for row in rows), dialect.title


@pytest.fixture(params=(pictures.VLLM, pictures.FLEET), ids=lambda path: path.stem)
def played(request: pytest.FixtureRequest) -> SourcePlayer:
    return SourcePlayer(request.param, float("inf"))


async def test_a_recording_plays_to_its_end_without_a_note(played: SourcePlayer) -> None:
    running = asyncio.create_task(played.run())
    async with asyncio.timeout(60):
        while not played.ended:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    views = [source.view() for source in played.sources]
    await played.close()
    assert played.complete, played.note
    assert played.path.stat().st_size < 500_000
    for view in views:
        measures = view.measure(30.0)
        assert measures is not None
        assert measures.rate("prompt_tokens"), view.name
        assert not view.restarts
        assert all(kv.tree.complete and kv.tree.resident for kv in view.kv)


def test_recordings_have_no_tokens_and_no_folders() -> None:
    for path in (pictures.VLLM, pictures.FLEET):
        text = gzip.decompress(path.read_bytes()).decode()
        assert "token_ids" not in text
        assert "/root" not in text
        assert "/tmp" not in text
        assert "/work" not in text
