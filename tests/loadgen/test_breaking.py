"""Runs that break while requests go: what was measured is reported, in words and with an exit code, by the command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from golden import GoldenServer, Script, Stall, answer, role, text

from loadgen.engine_process import process_tree

ROOT = Path(__file__).resolve().parents[2]
HEADER = {"format": "paged-top-chat", "version": 1, "systems": {"main": "Be kind."}, "temperature": 0.7}
TURN = {"user": "Hi", "user_tokens": 1, "output_tokens": 2, "seed": 1}


def write_trace(path: Path, sessions: int) -> Path:
    lines = [{"session": f"s{i}", "arrival": i / 1000, "system": "main", "turns": [TURN]} for i in range(sessions)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [HEADER, *lines]))
    return path


async def start(arguments: tuple[object, ...], before: str, **environment: str) -> asyncio.subprocess.Process:
    """The command, after what a shell does `before`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LOADGEN_")}
    return await asyncio.create_subprocess_exec(
        *("bash", "-c", f'{before} exec "$0" -m loadgen.cli "$@"', sys.executable, *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**clean, "COLUMNS": "120", "LOADGEN_NO_PROBE": "1", "LOADGEN_NO_PLOTS": "1", **environment},
        cwd=ROOT,
    )


async def loadgen(
    *arguments: object,
    before: str = "",
    meanwhile: Callable[[asyncio.subprocess.Process], Awaitable[None]] | None = None,
    **environment: str,
) -> tuple[int | None, str, str]:
    process = await start(arguments, before, **environment)
    if meanwhile is not None:
        await meanwhile(process)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert "Traceback" not in err.decode()
    return process.returncode, out.decode(), err.decode()


def two_words(_: dict[str, Any]) -> Script:
    return answer(["a", "b"])


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_disk_that_gets_full_keeps_the_report(tmp_path: Path, workers: int) -> None:
    trace, out_file = write_trace(tmp_path / "t.jsonl", 60), tmp_path / "run.jsonl"
    async with GoldenServer(two_words) as server:
        code, out, err = await loadgen(
            *("replay", trace, "--url", server.url, "--out", out_file, "--workers", workers), before="ulimit -f 8;"
        )
    assert code == 2
    assert err.endswith(f"loadgen: {out_file}: cannot be written: File too large\n")
    assert "turns completed" in out
    assert out_file.stat().st_size == 8 * 1024


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if (mounted := subprocess.run(mount, capture_output=True, check=False)).returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_run_on_a_disk_that_gets_full_is_reported_and_gone_on_with(tmp_path: Path, tiny_disk: Path) -> None:
    trace, run = write_trace(tmp_path / "t.jsonl", 120), tiny_disk / "run.jsonl"
    filler = tiny_disk / "filler"
    filler.write_bytes(b"x" * 48 * 1024)
    async with GoldenServer(two_words) as server:
        code, out, err = await loadgen("replay", trace, "--url", server.url, "--out", run)
        assert code == 2, err
        assert err.endswith(f"loadgen: {run}: cannot be written: No space left on device\n")
        assert "turns completed" in out
        code, out, err = await loadgen("report", run)
        assert code == 0, err
        assert "The last line of the file was cut while it was written" in " ".join(out.split())
        code, _, err = await loadgen("resume", run)  # still full: told, and nothing is lost of it
        assert code == 2
        assert f"{run}: cannot be written: No space left on device" in err
        filler.unlink()
        code, out, err = await loadgen("resume", run)
        assert code == 0, err
    assert "120 of 120" in out


@pytest.mark.parametrize("flag", ["--json", "--html", "--csv", "--vllm-json"])
async def test_a_file_that_does_not_fit_leaves_what_was_there(tmp_path: Path, tiny_disk: Path, flag: str) -> None:
    """Of a run whose file is elsewhere: neither a half of the new file nor a rest of it stays."""
    trace, run, there = write_trace(tmp_path / "t.jsonl", 60), tmp_path / "run.jsonl", tiny_disk / "figures"
    async with GoldenServer(two_words) as server:
        assert (await loadgen("replay", trace, "--url", server.url, "--out", run))[0] == 0
    there.write_text("as it was")
    (tiny_disk / "filler").write_bytes(b"x" * 60 * 1024)  # a page is left, for the new file's beginning
    code, _, err = await loadgen("report", run, flag, there)
    assert (code, err) == (2, f"loadgen: {flag} {there}: cannot be written: No space left on device\n")
    assert there.read_text() == "as it was"
    assert sorted(path.name for path in tiny_disk.iterdir()) == ["figures", "filler"]


async def test_a_run_that_has_no_room_to_begin_leaves_no_file_in_the_way(tmp_path: Path, tiny_disk: Path) -> None:
    trace, run = write_trace(tmp_path / "t.jsonl", 1), tiny_disk / "run.jsonl"
    (tiny_disk / "filler").write_bytes(b"x" * 64 * 1024)
    async with GoldenServer(two_words) as server:
        code, _, err = await loadgen("replay", trace, "--url", server.url, "--out", run)
        assert (code, server.served) == (2, [])
        assert f"{run}: cannot be written: No space left on device" in err
        assert not run.exists()


async def test_a_client_process_that_is_killed_keeps_the_report(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 20)
    stalled = asyncio.Event()

    def script(_: dict[str, Any]) -> Script:
        if len(server.served) < 20:
            return two_words({})
        stalled.set()
        return Script([role(), text("a"), Stall()])

    async def kill(process: asyncio.subprocess.Process) -> None:
        await asyncio.wait_for(stalled.wait(), 30)
        for pid in process_tree(process.pid)[1:]:
            os.kill(pid, signal.SIGKILL)

    async with GoldenServer(script) as server:
        code, out, err = await loadgen("replay", trace, "--url", server.url, "--workers", 2, meanwhile=kill)
    assert code == 3
    assert "client process" in err
    assert "ended with exit code -9" in err
    assert "turns completed" in out


async def test_no_more_open_files_fails_requests_and_not_the_run(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 80)
    async with GoldenServer(lambda _: answer(["a", "b"], first=1.0)) as server:
        code, out, err = await loadgen("replay", trace, "--url", server.url, "--users", 80, before="ulimit -n 40;")
    assert code == 1, err
    assert "Too many open files" in out
    assert "turns failed" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_before_the_first_request_just_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    """The trial request is never answered."""
    asked = asyncio.Event()

    def script(_: dict[str, Any]) -> Script:
        asked.set()
        return Script([role(), Stall()])

    async def interrupt(process: asyncio.subprocess.Process) -> None:
        await asyncio.wait_for(asked.wait(), 30)
        process.send_signal(number)

    trace, out_file = write_trace(tmp_path / "t.jsonl", 1), tmp_path / "run.jsonl"
    async with GoldenServer(script) as server:
        code, out, err = await loadgen(
            *("replay", trace, "--url", server.url, "--out", out_file), meanwhile=interrupt, LOADGEN_NO_PROBE="0"
        )
    assert (code, out, err) == (130, "", "loadgen: interrupted\n")
    assert not out_file.exists()


async def test_ctrl_c_between_two_repeats_reports_the_first(tmp_path: Path) -> None:
    """The second trial request is never answered."""
    asked = asyncio.Event()

    def script(_: dict[str, Any]) -> Script:
        if len(server.served) <= 3:  # a trial and two requests
            return two_words({})
        asked.set()
        return Script([role(), Stall()])

    async def interrupt(process: asyncio.subprocess.Process) -> None:
        await asyncio.wait_for(asked.wait(), 30)
        process.send_signal(signal.SIGINT)

    trace, out_file = write_trace(tmp_path / "t.jsonl", 2), tmp_path / "out.json"
    async with GoldenServer(script) as server:
        code, out, err = await loadgen(
            *("replay", trace, "--url", server.url, "--repeat", 3, "--json", out_file),
            meanwhile=interrupt,
            LOADGEN_NO_PROBE="0",
        )
    assert code == 130, err
    assert err.endswith("loadgen: interrupted\n")
    assert json.loads(out_file.read_text())["summary"]["completed"] == 2
    assert "turns completed" in out


@pytest.mark.parametrize(
    ("before", "code", "says"),
    [
        ("exec 0<&-;", 0, ""),
        ("exec 1>&-;", 0, ""),
        ("exec 0<&- 1>&- 2>&-;", 0, ""),
        ("exec 1>/dev/full;", 2, "loadgen: standard output: cannot be written: No space left on device"),
        ("exec 2>/dev/full;", 0, ""),
        ("exec 2> >(true);", 0, ""),
    ],
)
async def test_standard_streams_that_are_closed_or_full(tmp_path: Path, before: str, code: int, says: str) -> None:
    """A run is measured and its figures are kept, whether or not anybody can be told meanwhile."""
    trace, run_file, out_file = write_trace(tmp_path / "t.jsonl", 20), tmp_path / "run.jsonl", tmp_path / "out.json"
    async with GoldenServer(lambda _: answer(["a", "b"], first=0.5)) as server:
        arguments = ("replay", trace, "--url", server.url, "--out", run_file, "--json", out_file, "--workers", 2)
        returned, out, err = await loadgen(*arguments, before=before)
    assert returned == code, err
    assert says in err
    assert ("turns completed" in out) == ("1>" not in before)
    assert json.loads(out_file.read_text())["summary"]["completed"] == 20
    assert all(json.loads(line) for line in run_file.read_text().splitlines())
