"""A replay obeys lines on its standard input, and its report says what was changed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from golden import GoldenServer, Script, answer
from rich.console import Console

from loadgen.steer import SteerError, obey, order

HEADER = {"format": "paged-top-chat", "version": 1, "systems": {"main": "Be kind."}, "temperature": 0.7}
HOUR = 3600.0


def two_words(_: dict[str, Any]) -> Script:
    return answer(["a", "b"])


def write_trace(path: Path, arrivals: list[float], think: float = 0.0) -> Path:
    turn = {"user": "Hi", "user_tokens": 1, "output_tokens": 2, "seed": 1}
    lines = [
        {"session": f"s{at}", "arrival": arrival, "system": "main", "turns": [turn, {**turn, "think": think}]}
        for at, arrival in enumerate(arrivals)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [HEADER, *lines]))
    return path


async def start(trace: Path, url: str, *arguments: object) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LOADGEN_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen.cli", "replay", str(trace), "--url", url, "--steer", *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**clean, "COLUMNS": "120", "PYTHONUNBUFFERED": "1", "LOADGEN_NO_PROBE": "1"},
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip


@pytest.mark.parametrize(("line", "asked"), [("speed 3", 3.0), (" speed  0.25\r", 0.25), ("stop", None)])
def test_orders(line: str, asked: float | None) -> None:
    assert order(line) == asked


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "expected 'speed X' or 'stop', got ''"),
        ("speed", "expected 'speed X' or 'stop'"),
        ("speed 0", "speed: expected a number above 0, got '0'"),
        ("speed nan", "speed: expected a number above 0, got 'nan'"),
        ("faster", "expected 'speed X' or 'stop', got 'faster'"),
    ],
)
def test_what_is_no_order_is_told_and_changes_nothing(line: str, says: str) -> None:
    with pytest.raises(SteerError) as caught:
        order(line)
    assert says in str(caught.value)
    out, asked = io.StringIO(), list[float]()
    obey(line, asked.append, Console(file=out))
    assert says in out.getvalue()
    assert asked == []


async def test_the_speed_changes_while_it_runs(tmp_path: Path) -> None:
    """By the recorded times it would take two hours: arrivals and think times follow the new speed."""
    trace, out_file = write_trace(tmp_path / "t.jsonl", [0.0, HOUR], think=HOUR), tmp_path / "out.json"
    first = asyncio.Event()

    def script(body: dict[str, Any]) -> Script:
        first.set()
        return two_words(body)

    async with GoldenServer(script) as server:
        process = await start(trace, server.url, "--json", out_file)
        assert process.stdin is not None
        await asyncio.wait_for(first.wait(), 30)
        process.stdin.write(b"nonsense\nspeed 36000\n")
        out, err = await asyncio.wait_for(process.communicate(), 60)  # which also ends the input
    assert process.returncode == 0, err
    assert "steer: expected 'speed X' or 'stop', got 'nonsense'" in err.decode()
    assert "steer: speed 36000" in err.decode()
    document = json.loads(out_file.read_text())
    assert document["summary"]["completed"] == 4
    settings = document["settings"]
    assert settings["speed"] == 1.0
    ((second, speed),) = settings["speed_changes"]
    assert speed == 36000.0
    assert second > 0
    assert "The speed was changed while it ran: 1 was asked for, then 36000 from second" in out.decode()


async def test_stop_is_ctrl_c(tmp_path: Path) -> None:
    trace, out_file = write_trace(tmp_path / "t.jsonl", [0.0, HOUR], think=HOUR), tmp_path / "out.json"
    first = asyncio.Event()

    def script(body: dict[str, Any]) -> Script:
        first.set()
        return two_words(body)

    async with GoldenServer(script) as server:
        process = await start(trace, server.url, "--json", out_file)
        assert process.stdin is not None
        await asyncio.wait_for(first.wait(), 30)
        process.stdin.write(b"stop\n")
        await process.stdin.drain()
        out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130, err
    assert b"Interrupted" in out
    document = json.loads(out_file.read_text())
    assert document["settings"]["interrupted"]
    assert document["settings"]["speed_changes"] == []


async def test_a_rate_keeps_its_arrivals_and_think_times_follow(tmp_path: Path) -> None:
    trace, out_file = write_trace(tmp_path / "t.jsonl", [0.0, HOUR], think=HOUR), tmp_path / "out.json"
    async with GoldenServer(two_words) as server:
        process = await start(trace, server.url, "--rate", 1000, "--json", out_file)
        _, err = await asyncio.wait_for(process.communicate(b"speed 1e6\n"), 60)
    assert process.returncode == 0, err
    assert json.loads(out_file.read_text())["summary"]["completed"] == 4


async def test_without_a_standard_input_it_runs_on(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", [0.0])
    async with GoldenServer(two_words) as server:
        line = f"{sys.executable} -m loadgen.cli replay {trace} --url {server.url} --steer --no-plots 0<&-"
        process = await asyncio.create_subprocess_shell(
            line, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, cwd=Path(__file__).parents[2]
        )
        _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, b"Traceback" in err) == (0, False), err
