"""Runs against real engines with the tiny model: loadgen's figures are the engine's own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil
import pytest
from rich.console import Console

from loadgen.engine_process import EngineProcess
from loadgen.perform import perform
from loadgen.results.document import document
from loadgen.results.run_file import RunFile
from loadgen.settings import Settings
from loadgen.target import Steering, Target
from loadgen.traces.formats import open_trace

TINY = ("--model", "tiny", "--kv-memory", "64MiB", "--max-model-len", "2048")
SYSTEM = "You are a kind and patient helper of a small shop. " * 4


def turn(number: int, **more: Any) -> dict[str, Any]:
    message = {"user": f"What is the price of item {number}?", "user_tokens": 9}
    return {**({} if "regenerates" in more else message), "output_tokens": 10 + number, "seed": number, **more}


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    header = {"format": "paged-top-chat", "version": 1, "systems": {"main": SYSTEM}, "temperature": 0.7}
    turns = [turn(1), turn(2, think=0.5), turn(3, regenerates=1, think=0.2), turn(4, think=0.5)]
    sessions = [
        {"session": f"s{n}", "arrival": n / 10, "system": "main", "turns": turns[: 1 + n % 4]} for n in range(8)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *sessions]))
    return path


def listening(url: str) -> bool:
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) == 0


class Ran(NamedTuple):
    run: RunFile
    document: dict[str, Any]

    @property
    def engine(self) -> dict[str, Any]:
        engine: dict[str, Any] = self.document["engine"]
        return engine


async def in_process(trace: Path, **options: Any) -> Ran:
    async with EngineProcess(TINY, lambda _: None) as engine:
        console, path = Console(file=io.StringIO()), trace.with_suffix(".run.jsonl")
        run = await perform(Settings(file=str(trace), **options), Target(engine.url, engine), path, console, Steering())
        return Ran(run, document(run))


async def test_the_client_and_the_engine_agree(trace_file: Path) -> None:
    ran = await in_process(trace_file, speed=50.0)
    summary, engine = ran.document["summary"], ran.engine
    sessions = list(open_trace(trace_file).sessions())
    assert (summary["failed"], summary["completed"]) == (0, sum(len(session.turns) for session in sessions))
    assert summary["other_length_than_asked"] == 0
    assert summary["token_source"] == "usage"
    expected = sum(turn.output_tokens for session in sessions for turn in session.turns)  # type: ignore[misc]
    assert summary["total_output_tokens"] == engine["sampled_tokens"] == expected
    told, metrics = ran.document["server"], ran.document["server"]["metrics"]
    assert (told["kind"], metrics["names_of"], told["differs"]) == ("paged-engine", "paged-engine", [])
    agreement = ran.document["agreement"]
    assert {agreement[side]["verdict"] for side in ("prompt", "generation", "prefix")} == {"agree"}, agreement
    prefix = agreement["prefix"]
    assert prefix["client"]["tokens"] == prefix["server"]["tokens"] == prefix["engine"]["tokens"] > 0
    assert summary["total_input_tokens"] == engine["looked_up_tokens"]
    assert engine["prefill_tokens"] == summary["total_input_tokens"] - engine["found_tokens"]
    assert engine["records_lost"] == 0
    assert engine["found_tokens"] == summary["cached_tokens"] > 0
    assert engine["peak_saved_blocks"] > 0
    assert engine["modes"] == ["continuous+paged"]
    assert engine["peak_rss_bytes"] > 2**26
    assert ran.run.end is not None
    assert len(ran.run.end.moments) >= engine["steps"]


async def test_modes_are_set_through_control(trace_file: Path) -> None:
    control = {"batching": "static", "allocation": "reserved"}
    ran = await in_process(trace_file, speed=5.0, sessions=4, control=control)
    assert (ran.document["summary"]["failed"], ran.engine["modes"]) == (0, ["static+reserved"])
    assert ran.engine["mean_internal_waste_share"] > 0.6


async def test_prompts_of_a_trace_without_text_have_its_lengths_and_share_its_blocks(tmp_path: Path) -> None:
    """A Mooncake trace at 1/32: its 512-token blocks are the engine's 16 tokens, and each that repeats is found."""
    trace = tmp_path / "mooncake.jsonl"
    prompts = [(2000, [0, 1, 2, 3]), (1500, [0, 1, 4]), (2048, [0, 1, 2, 5]), (700, [6, 7]), (2048, [0, 1, 2, 5])]
    lines = [
        {"timestamp": 500 * number, "input_length": length, "output_length": 64, "hash_ids": ids}
        for number, (length, ids) in enumerate(prompts)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = await in_process(trace, length_scale=1 / 32)
    assert ran.document["summary"]["asked_input_mismatches"] == 0
    records = sorted(ran.run.records(), key=lambda record: record.index)
    assert [record.input_tokens for record in records] == [62, 46, 64, 21, 64]
    assert [record.output_tokens for record in records] == [2] * 5
    # Whole blocks, and of the same prompt again all but its last token, which is computed in a copied block.
    assert [record.cached_tokens for record in records] == [0, 32, 48, 0, 63]


async def start(*arguments: object) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LOADGEN_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadgen.cli",
        *map(str, arguments),
        "--model",
        "tiny",
        "--engine-args",
        " ".join(TINY[2:]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean,
        cwd=Path(__file__).resolve().parents[2],
    )


async def test_compare_starts_and_stops_an_engine_for_each_side(trace_file: Path, tmp_path: Path) -> None:
    out_file = tmp_path / "out.json"
    process = await start("compare", trace_file, "--speed", 20, "--repeat", 1, "--json", out_file)
    out, err = await process.communicate()
    assert process.returncode == 0, err
    document = json.loads(out_file.read_text())
    a, b, ratio = document["a"], document["b"], document["ratio"]
    assert (a["engine"]["modes"], b["engine"]["modes"]) == (["static+reserved"], ["continuous+paged"])
    assert ratio["summary"]["total_output_tokens"] == 1.0
    for part in ("summary", "engine"):
        for name, quotient in ratio[part].items():
            if quotient is not None and not isinstance(quotient, dict):
                assert quotient == pytest.approx(b[part][name] / a[part][name])
    assert ratio["engine"]["mean_internal_waste_share"] < 0.5
    assert a["settings"]["url"] != b["settings"]["url"]
    assert not listening(a["settings"]["url"])
    assert not listening(b["settings"]["url"])
    assert b"Side by side" in out
    assert b"a fresh engine for each side" in out


async def test_ctrl_c_before_the_second_side_reports_the_first(trace_file: Path, tmp_path: Path) -> None:
    out_file = tmp_path / "out.json"
    process = await start("compare", trace_file, "--speed", 20, "--sessions", 2, "--json", out_file)
    assert process.stderr is not None
    starts = 0
    while starts < 2:
        line = await process.stderr.readline()
        assert line
        starts += line.startswith(b"starting an engine ...\n")
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert process.returncode == 130, err
    assert b"Interrupted: only static+reserved was run" in out
    document = json.loads(out_file.read_text())
    assert (document["a"]["summary"]["completed"], document["b"]) == (3, None)


async def test_ctrl_c_stops_the_engine_too(trace_file: Path, tmp_path: Path) -> None:
    out_file = tmp_path / "out.json"
    late = trace_file.read_text().replace('"arrival": 0.7', '"arrival": 700')
    trace_file.write_text(late)
    process = await start("replay", trace_file, "--json", out_file)
    assert process.stderr is not None
    while b"running" not in (line := await process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert process.returncode == 130, err
    assert b"Interrupted" in out
    document = json.loads(out_file.read_text())
    assert document["summary"]["not_reached"] >= 1
    assert document["summary"]["failed"] == 0
    assert not listening(document["settings"]["url"])


async def test_a_dead_engine_ends_the_run_with_a_report(trace_file: Path, tmp_path: Path) -> None:
    out_file = tmp_path / "out.json"
    trace_file.write_text(trace_file.read_text().replace('"arrival": 0.7', '"arrival": 700'))
    process = await start("replay", trace_file, "--json", out_file)
    assert process.stderr is not None
    while b"running" not in (line := await process.stderr.readline()):
        assert line
    (engine,) = psutil.Process(process.pid).children()
    engine.kill()
    out, err = await process.communicate()
    assert process.returncode == 3, err
    assert b"the engine ended with exit code -9 while requests ran" in err
    assert json.loads(out_file.read_text())["summary"]["not_reached"] >= 1
    assert b"Outcome" in out


async def test_ctrl_c_while_the_engine_starts(trace_file: Path) -> None:
    process = await start("replay", trace_file)
    assert process.stderr is not None
    assert b"starting an engine" in await process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 130
    assert err.endswith(b"loadgen: interrupted\n")
