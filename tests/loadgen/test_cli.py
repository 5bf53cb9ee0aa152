"""The command itself, as a process: exit codes, messages, files, signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from golden import GoldenServer, Script, Stall, answer, role, text

LIGHT = "import sys; from loadgen.cli import make_parser; make_parser(); print(*sys.modules)"
HEADER = {"format": "paged-top-chat", "version": 1, "systems": {"main": "Be kind."}, "temperature": 0.7}


def write_trace(path: Path, sessions: int = 3, turns: int = 2) -> Path:
    turn = {"user": "Hi", "user_tokens": 1, "output_tokens": 2, "seed": 1}
    names = [f"s{number}" for number in range(sessions)]
    lines = [
        {"session": name, "arrival": i / 10, "system": "main", "turns": [turn] * turns} for i, name in enumerate(names)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [HEADER, *lines]))
    return path


async def start(
    *arguments: object, stdout: int = asyncio.subprocess.PIPE, **environment: str
) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LOADGEN_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadgen.cli",
        *map(str, arguments),
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        env={**clean, "COLUMNS": "120", "LOADGEN_NO_PROBE": "1", **environment},
        cwd=Path(__file__).resolve().parents[2],
    )


async def loadgen(*arguments: object, **environment: str) -> tuple[int, str, str]:
    process = await start(*arguments, **environment)
    out, err = await process.communicate()
    assert "Traceback" not in err.decode()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def two_words(_: dict[str, Any]) -> Script:
    return answer(["a", "b"])


async def test_a_served_trace(tmp_path: Path) -> None:
    trace, out_file = write_trace(tmp_path / "t.jsonl"), tmp_path / "out.json"
    async with GoldenServer(two_words) as server:
        code, out, err = await loadgen("replay", trace, "--url", server.url + "/v1/", "--speed", 10, "--json", out_file)
    assert code == 0, err
    assert "3 of 3" in out
    document = json.loads(out_file.read_text())
    assert {"summary", "engine", "settings"} <= set(document)
    assert (document["summary"]["completed"], document["summary"]["total_output_tokens"]) == (6, 12)
    assert document["engine"] is None
    assert document["settings"]["speed"] == 10.0
    assert "The server tells no figures of its own: no /engine/snapshot, and http" in " ".join(out.split())
    assert sorted(tmp_path.iterdir()) == [out_file, trace]  # nothing half-written beside it


async def test_options_as_environment_variables(tmp_path: Path) -> None:
    trace, out_file = write_trace(tmp_path / "t.jsonl"), tmp_path / "out.json"
    async with GoldenServer(two_words) as server:
        code, out, err = await loadgen(
            "replay",
            trace,
            "--sessions",
            2,
            LOADGEN_URL=server.url,
            LOADGEN_SPEED="20",
            LOADGEN_SESSIONS="1",
            LOADGEN_JSON=str(out_file),
            LOADGEN_NO_PLOTS="1",
        )
    assert code == 0, err
    settings = json.loads(out_file.read_text())["settings"]
    assert (settings["speed"], settings["sessions"]) == (20.0, 2)  # the flag wins
    assert "by the time of sending" not in out


async def test_the_json_is_written_also_when_nobody_reads_the_report(tmp_path: Path) -> None:
    trace, out_file = write_trace(tmp_path / "t.jsonl"), tmp_path / "out.json"
    reader, writer = os.pipe()
    os.close(reader)
    async with GoldenServer(two_words) as server:
        process = await start("replay", trace, "--url", server.url, "--speed", 10, "--json", out_file, stdout=writer)
        os.close(writer)
        _, err = await process.communicate()
    assert process.returncode == 141, err
    assert b"Traceback" not in err
    assert json.loads(out_file.read_text())["summary"]["completed"] == 6


async def test_compare_keeps_its_first_side_when_the_second_cannot_run(tmp_path: Path) -> None:
    class Gone(GoldenServer):
        """Lists its models once."""

        asked = 0

        async def _models(self, request: web.Request) -> web.StreamResponse:
            self.asked += 1
            return await super()._models(request) if self.asked == 1 else web.Response(status=500)

    async def control(request: web.Request) -> web.Response:
        return web.json_response(await request.json())

    trace, out_file = write_trace(tmp_path / "t.jsonl"), tmp_path / "out.json"
    server = Gone(two_words)
    server.app.router.add_patch("/engine/control", control)
    async with server:
        code, out, err = await loadgen("compare", trace, "--url", server.url, "--repeat", 1, "--json", out_file)
    assert code == 3
    assert "answered 500" in err
    assert "Only static+reserved was run" in out
    assert "3 of 3" in out
    document = json.loads(out_file.read_text())
    assert (document["a"]["summary"]["completed"], document["b"], document["ratio"]) == (6, None, {})


async def test_some_failed_is_exit_code_1(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl")
    async with GoldenServer(lambda _: Script(status=500, body={"error": {"message": "boom"}})) as server:
        code, out, _ = await loadgen("replay", trace, "--url", server.url, "--speed", 10)
    assert code == 1
    assert "500: boom" in out
    assert "not sent: an earlier turn failed" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_ctrl_c_reports_so_far(tmp_path: Path, number: signal.Signals) -> None:
    trace, out_file = write_trace(tmp_path / "t.jsonl", turns=1), tmp_path / "out.json"
    third = asyncio.Event()

    def script(_: dict[str, Any]) -> Script:
        if len(server.served) < 3:
            return two_words({})
        third.set()
        return Script([role(), text("a"), Stall()])

    async with GoldenServer(script) as server:
        process = await start("replay", trace, "--url", server.url, "--json", out_file)
        await asyncio.wait_for(third.wait(), 30)
        process.send_signal(number)
        out, err = await process.communicate()
    assert process.returncode == 130, err
    assert b"Interrupted" in out
    assert b"Traceback" not in err
    summary = json.loads(out_file.read_text())["summary"]
    assert (summary["completed"], summary["interrupted"], summary["failed"]) == (2, 1, 0)


async def test_with_nohup_it_goes_on_when_its_terminal_goes(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", turns=1)
    begun = asyncio.Event()

    def script(_: dict[str, Any]) -> Script:
        begun.set()
        return answer(["a", "b"], first=0.5)

    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a process is born with what its parent does not hear
    try:
        async with GoldenServer(script) as server:
            process = await start("replay", trace, "--url", server.url)
            await asyncio.wait_for(begun.wait(), 30)
            process.send_signal(signal.SIGHUP)
            _, err = await process.communicate()
    finally:
        signal.signal(signal.SIGHUP, usual)
    assert process.returncode == 0, err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["replay", "{trace}", "--speed", "0"], "--speed: expected a number above 0, got '0'"),
        (["replay", "{trace}", "--speed", "nan"], "--speed: expected a number above 0, got 'nan'"),
        (["replay", "{trace}", "--sessions", "1.5"], "--sessions: expected a whole number above 0, got '1.5'"),
        (["replay", "{trace}", "--sessions", "9"], "--sessions 9: {trace} has 3 sessions"),
        (["replay", "{trace}", "--concurrency", "-1"], "--concurrency: expected a whole number above 0"),
        (["replay", "{trace}", "--rate", "x"], "--rate: expected a number above 0"),
        (["replay", "{trace}", "--speed", "1e-320"], "--speed: expected a number from 1e-09 to 1e+09, got '1e-320'"),
        (["replay", "{trace}", "--rate", "1e300"], "--rate: expected a number from 1e-09 to 1e+09"),
        (["replay", "{trace}", "--model", "\udcff"], "--model: expected UTF-8"),
        (["replay", "{trace}", "--seed", "-1"], "--seed: expected a whole number from 0 on"),
        (["replay", "{trace}", "--url", "localhost:1"], "--url: expected an address like http://127.0.0.1:8000"),
        (
            ["replay", "{trace}", "--url", "http://me:secret@127.0.0.1:1", "--api-key", "secret"],
            "--api-key and --url with a user and password: give one of them",
        ),
        (["replay", "{trace}", "--url", "ftp://me:secret@127.0.0.1:1"], "got 'ftp://...@127.0.0.1:1'"),
        (["compare", "{trace}", "--a", "url=http://me:secret@a,speed=2"], "expected an address without a user"),
        (["replay", "{trace}", "--url", "http://a", "--header", "secret"], "--header: expected 'Name: value'"),
        (["replay", "{trace}", "--url", "http://a", "--header", "x y: secret"], "got the name 'x y'"),
        (["replay", "{trace}", "--url", "http://a", "--header", "Content-Type: secret"], "Content-Type: not allowed"),
        (
            ["replay", "{trace}", "--url", "http://a", "--header", "authorization: secret", "--admin-key", "secret"],
            "--api-key and --header 'Authorization: ...': give one of them",
        ),
        (["replay", "{trace}", "--url", "https://a", "--ca-file", "{trace}"], "it has no certificates in PEM"),
        (["replay", "{trace}", "--url", "https://a", "--ca-file", "{folder}/no"], "No such file"),
        (["replay", "{trace}", "--metrics-url", "http://b:8002"], "--metrics-url: only beside --url"),
        (["replay", "{trace}", "--url", "http://a", "--metrics-url", "b:8002"], "--metrics-url: expected an address"),
        (["replay", "{trace}", "--url", "http://[::1"], "--url: expected an address like http://127.0.0.1:8000"),
        (["replay", "{trace}", "--url", "http://127.0.0.1:0"], "--url: expected an address like http://127.0.0.1:8000"),
        (["replay", "{trace}", "--url", "http://x/?a=b"], "--url: expected an address like http://127.0.0.1:8000"),
        (["replay", "{trace}", "--url", "http://x y"], "--url: expected an address like http://127.0.0.1:8000"),
        (["replay", "{trace}", "--api-key", "a\nb"], "--api-key: expected a key without line ends"),
        (["replay", "{trace}", "--extra-body", '{{"a":"\udcff"}}'], "--extra-body: expected UTF-8"),
        (["replay", "{trace}", "--mode", "fast"], "--mode: expected one of static, continuous, got 'fast'"),
        (["replay", "{trace}", "--engine-args", '"x'], "--engine-args: cannot be split"),
        (["replay", "{folder}/none.jsonl"], "none.jsonl: cannot be read: No such file or directory"),
        (["replay", "{trace}", "--json", "{folder}"], "is a folder; name a file"),
        (["replay", "{trace}", "--json", "{folder}/no/x.json"], "there is no folder {folder}/no"),
        (["replay", "{trace}", "--json", "/proc/x.json"], "--json /proc/x.json: cannot be written"),
        (["replay", "{trace}", "--json", "{folder}/" + "a" * 255], "cannot be written: File name too long"),
        (["replay", "{trace}", "--json", "a" * 5000], "cannot be written: File name too long"),
        (["replay", "{trace}", "--json", "{trace}"], "--json {trace}: is one of the files to read"),
        (["replay", "{trace}", "--out", "{folder}/x", "--json", "{folder}/x"], "x: is written for another option"),
        (["replay", "{trace}", "--out", "/dev/null"], "--out /dev/null: is no regular file"),
        (["compare", "{trace}", "--json", "{trace}"], "--json {trace}: is one of the files to read"),
        (["sweep", "{trace}", "--values", "1,2", "--for", "1s", "--json", "{trace}"], "is one of the files to read"),
        (["inspect", "{trace}", "--json", "{trace}"], "--json {trace}: is one of the files to read"),
        (["diff", "{trace}", "{trace}", "--json", "{trace}"], "--json {trace}: is one of the files to read"),
        (["report", "x", "--json", "{folder}/x", "--csv", "{folder}/x"], "x: is written for another option"),
        (["replay", "{trace}", "--users", "2", "--until", "saturation"], "--until saturation: the users of a closed l"),
        (
            ["sweep", "{trace}", "--over", "users", "--values", "1,2", "--until", "saturation", "--for", "1s"],
            "saturation: the users of a closed loop",
        ),
        (["compare", "{trace}", "--mode", "static"], "unrecognized arguments: --mode static"),
        (["synth", "--excerpt", "{folder}/none.csv"], "none.csv: cannot be read"),
        (["synth", "--out", "{folder}/no/x.jsonl"], "cannot be written"),
    ],
)
async def test_bad_input_is_exit_code_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    names = {"trace": str(write_trace(tmp_path / "t.jsonl")), "folder": str(tmp_path)}
    code, out, err = await loadgen(*(argument.format(**names) for argument in arguments))
    assert code == 2
    assert says.format(**names) in err
    assert "secret" not in err
    assert out == ""


async def test_a_bad_line_names_line_and_field(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl")
    trace.write_text(trace.read_text().replace('"output_tokens": 2', '"output_tokens": "two"', 3))
    code, _, err = await loadgen("replay", trace)
    assert code == 2
    assert err == f"loadgen: {trace}: line 2: turns[0].output_tokens: Expected int, got str\n"


async def test_a_bad_variable_is_named(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl")
    for name, value in (("LOADGEN_SPEED", "x"), ("LOADGEN_MODE", "fast"), ("LOADGEN_NO_PLOTS", "maybe")):
        code, _, err = await loadgen("replay", trace, **{name: value})
        assert code == 2
        assert f"{name}: expected " in err
    code, _, err = await loadgen("synth", "--out", tmp_path / "s.jsonl", "--sessions", 1, LOADGEN_SPEED="x")
    assert code == 0, err  # it is none of synth's options


async def test_no_server_is_exit_code_3(tmp_path: Path) -> None:
    code, _, err = await loadgen("replay", write_trace(tmp_path / "t.jsonl"), "--url", "http://127.0.0.1:9")
    assert code == 3
    assert "no server at http://127.0.0.1:9" in err


async def test_an_engine_that_cannot_start_is_exit_code_3_with_its_own_words(tmp_path: Path) -> None:
    code, _, err = await loadgen("replay", write_trace(tmp_path / "t.jsonl"), "--engine-args", "--block-size zero")
    assert code == 3
    assert "before it was ready" in err
    assert "block-size" in err


async def test_synth_writes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    code, out, _ = await loadgen("synth", "--out", path, "--sessions", 3, "--seed", 1)
    assert code == 0
    assert "3 sessions" in out
    assert len(path.read_text().splitlines()) == 4


async def test_help_loads_nothing_heavy() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LIGHT, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    loaded = set(out.decode().split())
    assert "loadgen.cli" in loaded
    assert not loaded & {"torch", "numpy", "aiohttp", "rich", "plotext", "msgspec", "asyncio", "engine"}


async def test_a_rate_is_kept_to_its_last_digit(tmp_path: Path) -> None:
    trace, out_file = write_trace(tmp_path / "t.jsonl", turns=1), tmp_path / "out.json"
    async with GoldenServer(two_words) as server:
        code, _, err = await loadgen("replay", trace, "--url", server.url, "--rate", "1234.5678", "--json", out_file)
    assert code == 0, err
    assert json.loads(out_file.read_text())["settings"]["rate"] == 1234.5678
