"""`loadgen compare` and `loadgen sweep` as commands, against golden servers; and what is said of bad options."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from golden import GoldenServer, as_asked

from loadgen.cli import main, make_parser
from loadgen.commands.sweep import plan_of

ROOT = Path(__file__).resolve().parents[3]


def write_trace(path: Path, sessions: int = 4, tokens: int = 6) -> Path:
    header = {"format": "paged-top-chat", "version": 2}
    turns = [{"user": "Say it.", "output_tokens": tokens}]
    lines = [{"session": f"s{number}", "arrival": number / 50, "turns": turns} for number in range(sessions)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    return path


async def start(*arguments: object) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LOADGEN_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.cli", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean,
        cwd=ROOT,
    )


async def loadgen(*arguments: object) -> tuple[int, str, str]:
    process = await start(*arguments)
    out, err = await process.communicate()
    assert "Traceback" not in err.decode()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


class Clearing(GoldenServer):
    """It can be told to forget its cache, as a paged-engine."""

    def __init__(self, script_of: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__(script_of)
        self.cleared = 0
        self.most = inf  # times that it forgets; then it fails
        self.app.router.add_post("/engine/cache/clear", self._clear)

    async def _clear(self, _: web.Request) -> web.Response:
        self.cleared += 1
        if self.cleared > self.most:
            return web.json_response({"error": {"message": "a worker cannot"}}, status=500)
        return web.json_response({"cleared_blocks": 0, "step": 0})


async def test_compare_finds_the_slower_server(tmp_path: Path) -> None:
    """Twenty times as slow, so that it is found on a busy machine too."""
    trace, out_file, folder = write_trace(tmp_path / "t.jsonl"), tmp_path / "out.json", tmp_path / "runs"
    async with Clearing(as_asked(0.005, 0.005)) as quick, GoldenServer(as_asked(0.1, 0.1)) as slow:
        code, out, err = await loadgen(
            *("compare", trace, "--repeat", 4, "--json", out_file, "--out", folder),
            *("--a", f"url={quick.url},name=quick", "--b", f"url={slow.url},name=slow"),
        )
    assert code == 0, err
    document = json.loads(out_file.read_text())
    assert quick.cleared == 5  # once to see that it can be, and before each of its runs
    assert {path.name for path in folder.iterdir()} == {f"{side}-{n}.jsonl" for side in "ab" for n in (1, 2, 3, 4)}
    verdicts = {verdict["figure"]: verdict for verdict in document["verdicts"]}
    assert verdicts["tpot"]["change"] > 2
    assert document["a"]["summary"]["completed"] == document["b"]["summary"]["completed"] == 4
    assert document["ratio"]["summary"]["total_output_tokens"] == 1
    assert len(document["repeats"]) == 4
    assert "Side by side" in out
    assert "1.00x" in out  # of the tokens and turns
    assert "B against A" in out
    assert "slow differs from quick:" in out
    assert "emptied before each run" in document["conditions"]
    assert "a first run was not counted" in document["conditions"]


async def test_a_cache_that_was_not_emptied_is_told(tmp_path: Path) -> None:
    """It was when each side asked first, and before the first run."""
    trace, out_file = write_trace(tmp_path / "t.jsonl"), tmp_path / "out.json"
    async with Clearing(as_asked(0.0, 0.0)) as server:
        server.most = 3
        code, _, err = await loadgen(
            *("compare", trace, "--url", server.url, "--repeat", 1, "--json", out_file, "--a", "speed=2", "--b", "")
        )
    assert code == 0, err
    assert server.cleared == 4
    assert json.loads(out_file.read_text())["conditions"] == (
        "a server's prefix cache was not emptied before each run, though it was asked to"
    )


async def test_compare_with_one_repeat_is_two_runs(tmp_path: Path) -> None:
    trace, out_file = write_trace(tmp_path / "t.jsonl"), tmp_path / "out.json"
    async with GoldenServer(as_asked(0.0, 0.0)) as server:
        code, out, err = await loadgen(
            *("compare", trace, "--url", server.url, "--repeat", 1, "--json", out_file, "--a", "speed=2", "--b", "")
        )
    assert code == 0, err
    document = json.loads(out_file.read_text())
    assert document["conditions"] == (
        "one server for both sides: the second found the prefix cache as the first left it"
    )
    assert [document[side]["settings"]["speed"] for side in "ab"] == [2.0, 1.0]
    assert "No verdict: fewer than 3 repeats" in out


async def test_ctrl_c_reports_the_whole_repeats(tmp_path: Path) -> None:
    """It comes in the third repeat: two are whole."""
    trace, out_file = write_trace(tmp_path / "t.jsonl"), tmp_path / "out.json"
    asked = 0
    third = asyncio.Event()

    def script(body: dict[str, Any]) -> Any:
        nonlocal asked
        asked += body["max_tokens"] == 6  # what the trace asks, not what finds the server's abilities out
        if asked > 17:
            third.set()
            return as_asked(3600, 0)(body)
        return as_asked(0, 0)(body)

    async with Clearing(script) as server:
        process = await start(
            *("compare", trace, "--url", server.url, "--json", out_file, "--a", "", "--b", "", "--repeat", 5)
        )
        await asyncio.wait_for(third.wait(), 60)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 130, err
    document = json.loads(out_file.read_text())
    assert len(document["repeats"]) == 2
    assert document["a"]["summary"]["completed"] == 4
    assert b"B against A" in out


async def test_compare_refuses_a_folder_with_runs(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl")
    (tmp_path / "a-1.jsonl").write_text("")
    code, _, err = await loadgen("compare", trace, "--url", "http://127.0.0.1:9", "--out", tmp_path)
    assert code == 2
    assert "a-1.jsonl is there already; name another folder" in err


async def test_a_sweep_goes_on_with_its_folder(tmp_path: Path) -> None:
    trace, folder, out_file = write_trace(tmp_path / "t.jsonl"), tmp_path / "runs", tmp_path / "out.json"
    options = ["--over", "users", "--slo", "e2e=10s", "--search", 0, "--out", folder, "--json", out_file]
    async with GoldenServer(as_asked(0.01, 0.002)) as server:
        code, out, err = await loadgen("sweep", trace, "--url", server.url, "--values", "1,2", *options)
        assert code == 0, err
        served = len(server.served)
        code, out, err = await loadgen("sweep", trace, "--url", server.url, "--values", "1,2,4", *options)
        assert code == 0, err
        assert 4 <= len(server.served) - served <= 6  # one more load, and what finds the server's abilities out
        code, _, err = await loadgen("sweep", trace, "--url", server.url, "--values", "1", *options, "--seed", 3)
    assert code == 2
    assert "users-1.jsonl: is of a run with other settings (seed); name another folder with --out" in err
    document = json.loads(out_file.read_text())
    assert [point["load"] for point in document["points"]] == [1, 2, 4]
    assert [point["summary"]["completed"] for point in document["points"]] == [4, 4, 4]
    assert document["max_goodput"]["best"]["value"] > 0
    assert {path.name for path in folder.iterdir()} == {"users-1.jsonl", "users-2.jsonl", "users-4.jsonl"}
    assert "Sweep over users" in out
    assert "Most goodput:" in out
    assert "the trace had ended" not in out  # it was to be played to its end


async def test_a_sweep_searches_for_the_most_goodput(tmp_path: Path) -> None:
    """Every request meets the limits, so that more users are better as far as the search may go."""
    trace, out_file = write_trace(tmp_path / "t.jsonl", sessions=16), tmp_path / "out.json"
    async with GoldenServer(as_asked(0.05, 0.01)) as server:
        code, out, err = await loadgen(
            *("sweep", trace, "--url", server.url, "--over", "users", "--values", "1", "--requests", 8),
            *("--slo", "e2e=60s", "--search", 2, "--json", out_file),
        )
        assert code == 0, err
        assert "the trace had ended" not in out
        _, out, _ = await loadgen("sweep", trace, "--url", server.url, "--values", "500", "--for", "60s")
        assert "Warning: load 500: the trace had ended before time=60s" in out
    document = json.loads(out_file.read_text())
    assert [point["load"] for point in document["points"]] == [1, 2, 4]
    assert [point["summary"]["completed"] for point in document["points"]] == [8, 8, 8]


def plan(*arguments: str) -> Any:
    return plan_of(make_parser().parse_args(["sweep", "t.jsonl", *arguments]))


def test_a_plan_of_loads() -> None:
    asked = plan("--from", "1", "--to", "8", "--steps", "4", "--for", "30s", "--until", "errors=5%")
    assert asked.loads == (1, 2, 4, 8)
    assert asked.base.until == ("errors=5%", "time=30s")
    assert plan("--values", "4,1,2", "--requests", "9").base.until == ("requests=9",)
    assert plan("--values", "4,1,2,2").loads == (1, 2, 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the loads with --values, or with --from and --to"),
        (["--values", "1", "--from", "1"], "give the loads with --values, or with --from and --to"),
        (["--from", "1"], "--to is missing"),
        (["--to", "1"], "--from is missing"),
        (["--from", "4", "--to", "1"], "the first load must be above 0 and below the last one, got 4 to 1"),
        (["--values", "1", "--for", "3s", "--requests", "3"], "--for and --requests: give one of them"),
        (["--values", "1.5", "--over", "users"], "--values: expected whole numbers of users, got 1.5"),
        (["--values", "1", "--users", "3"], "--over rate: not with arrivals 'users:3'"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as told:
        plan(*arguments)
    assert str(told.value).startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep", "t", "--values", "0"], "argument --values: expected a number above 0, got '0'"),
        (["sweep", "t", "--values", ","], "argument --values: expected loads between commas"),
        (["sweep", "t", "--for", "30"], "argument --for: expected a number with its unit"),
        (["sweep", "t", "--for", "0s"], "argument --for: expected a time above 0"),
        (["sweep", "t", "--over", "time"], "argument --over: expected one of rate, users, concurrency, speed"),
        (["compare", "t", "--repeat", "0"], "argument --repeat: expected a whole number above 0"),
    ],
)
def test_options_that_cannot_be_read(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(arguments)
    assert said in capsys.readouterr().err


def test_sides_that_cannot_be_understood_are_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "t.jsonl", "--a", "mode=fast"]) == 2
    assert capsys.readouterr().err == "loadgen: --a: mode: expected one of continuous, static, got 'fast'\n"
