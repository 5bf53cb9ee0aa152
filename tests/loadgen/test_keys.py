"""Keys: what each opens, and that they are in nothing that a run writes or shows to other processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from golden import GoldenServer, Script, answer
from servers_like import ServerLike
from steps import snapshot
from test_breaking import loadgen, write_trace

from engine.protocol import encode
from loadgen.access import Access, basic
from loadgen.engine_process import process_tree
from loadgen.keys import Keys


def test_each_opens_what_the_other_does_not() -> None:
    assert (Keys("a", "b").client, Keys("a", "b").engine) == (Access("a"), Access("b"))
    assert (Keys("a").client, Keys("a").engine) == (Access("a"), Access("a"))
    assert (Keys(None, "b").client, Keys(None, "b").engine) == (Access("b"), Access("b"))
    assert "a-key" not in repr(Keys("a-key", "b-key"))


def test_a_user_in_an_address_is_for_that_server_alone() -> None:
    keys = Keys(headers=(("X-Team", "blue"),), user=("http://a:1", "me", "p4ss-s3cret"))
    own = keys.at("http://a:1")
    assert own.client.sent == own.engine.sent == {"X-Team": "blue", "Authorization": basic("me", "p4ss-s3cret")}
    assert keys.at("http://b:1").client.sent == {"X-Team": "blue"}
    assert own.at("http://b:1") == own, "it is known whom they are for"
    assert "s3cret" not in f"{keys!r} {own!r}"


async def test_another_side_of_a_comparison_is_sent_no_user_of_the_first(tmp_path: Path) -> None:
    async with ServerLike("vllm") as mine, ServerLike("vllm") as other:
        code, _, err = await loadgen(
            *("compare", write_trace(tmp_path / "t.jsonl", 2), "--repeat", 1, "--no-plots"),
            *("--url", mine.url.replace("//", "//me:p4ss-s3cret@"), "--a", "speed=1", "--b", f"url={other.url}"),
        )
    assert code == 0, err
    assert {headers.get("Authorization") for headers in mine.headers} == {basic("me", "p4ss-s3cret")}
    assert {headers.get("Authorization") for headers in other.headers} == {None}


class Locked(GoldenServer):
    """A paged-engine with an admin key for its own routes, and for /v1 that or another."""

    def __init__(self, client: str) -> None:
        super().__init__(self._words, api_key=client)
        self.app.router.add_get("/engine/snapshot", self._snapshot)
        self.app.router.add_get("/engine/steps", self._steps)
        self.refused = 0
        self.stopped = asyncio.Event()

    def _words(self, _: dict[str, Any]) -> Script:
        return answer(["a", "b"])

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "golden", "owned_by": "paged-top"}]})

    def _is_admin(self, request: web.Request) -> bool:
        is_admin = request.headers.get("Authorization") == "Bearer admin-s3cret"
        self.refused += not is_admin
        return is_admin

    async def _snapshot(self, request: web.Request) -> web.Response:
        return web.Response(body=encode(snapshot(0, 1.0))) if self._is_admin(request) else web.Response(status=401)

    async def _steps(self, request: web.Request) -> web.StreamResponse:
        if not self._is_admin(request):
            return web.Response(status=401)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await asyncio.sleep(3600)
        return reply


def written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


@pytest.mark.parametrize("workers", [1, 2])
async def test_keys_open_their_routes_and_are_told_nowhere(tmp_path: Path, workers: int) -> None:
    trace, out = write_trace(tmp_path / "t.jsonl", 6), tmp_path / "out"
    out.mkdir()
    lines: list[bytes] = []

    async def look(process: asyncio.subprocess.Process) -> None:
        while len(server.served) < 1:
            await asyncio.sleep(0.01)
        lines.extend(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in process_tree(process.pid))

    async with Locked("client-s3cret") as server:
        code, printed, err = await loadgen(
            *("replay", trace, "--url", server.url, "--workers", workers),
            *("--out", out / "run.jsonl", "--json", out / "figures.json"),
            meanwhile=look,
            LOADGEN_ADMIN_KEY="admin-s3cret",
            LOADGEN_API_KEY="client-s3cret",
        )
    assert code == 0, err
    assert server.refused == 0
    assert json.loads((out / "figures.json").read_text())["engine"] is not None
    assert len(lines) == 1 + (workers if workers > 1 else 0)
    assert not any(b"s3cret" in data for data in (*lines, printed.encode(), err.encode(), written(out)))


async def test_keys_may_be_in_files_as_the_engine_reads_them(tmp_path: Path) -> None:
    trace, client, admin = write_trace(tmp_path / "t.jsonl", 1), tmp_path / "api.key", tmp_path / "admin.key"
    client.write_text("# of clients\n\nclient-s3cret # since May\nanother-key\n")
    admin.write_text("admin-s3cret\n")
    async with Locked("client-s3cret") as server:
        files = ("--api-key-file", client, "--admin-key-file", admin)
        code, printed, err = await loadgen("replay", trace, "--url", server.url, *files)
        assert (code, server.refused) == (0, 0), err
        assert "s3cret" not in printed + err
        code, _, err = await loadgen(  # the key itself goes before its file
            *("replay", trace, "--url", server.url, "--admin-key", "wr0ng"),
            LOADGEN_API_KEY_FILE=str(client),
            LOADGEN_ADMIN_KEY_FILE=str(admin),
        )
        assert (code, server.refused) == (3, 1), err
    for text, words in (
        ("# nothing\n", "got none"),
        ("\n# a\nbad\x01s3cret\n", "line 3: expected a key"),
        (None, "No such file"),
    ):
        client.unlink(missing_ok=True)
        if text is not None:
            client.write_text(text)
        code, _, err = await loadgen("replay", trace, "--url", server.url, "--api-key-file", client)
        assert code == 2
        assert "--api-key-file" in err
        assert words in err
        assert "s3cret" not in err


@pytest.mark.parametrize("command", ["replay", "sweep", "compare", "resume"])
async def test_each_command_that_takes_keys_takes_files_of_them(command: str) -> None:
    code, out, _ = await loadgen(command, "--help")
    told = " ".join(out.split())
    assert code == 0
    assert "--api-key-file FILE" in told
    assert "--admin-key-file FILE" in told
    assert "can read it in `ps`" in told


async def test_the_admin_key_opens_both(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 1)
    async with Locked("admin-s3cret") as server:
        code, _, err = await loadgen("replay", trace, "--url", server.url, "--admin-key", "admin-s3cret")
    assert (code, server.refused) == (0, 0), err


async def test_without_the_admin_key_a_run_has_no_engine_figures_and_says_so_before(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 2)
    async with Locked("client-s3cret") as server:
        code, out, err = await loadgen("replay", trace, "--url", server.url, LOADGEN_API_KEY="client-s3cret")
    assert code == 0, err
    told = "No figures of the engine: its own routes want an admin key, and none was given "
    told += "(--admin-key, --admin-key-file)."
    assert err.startswith(told)
    assert told in " ".join(out.split())
    assert server.refused == 1  # it was asked once


class NoAdmin(Locked):
    """A paged-engine with API keys alone: its own routes are closed, and it says so."""

    async def _snapshot(self, request: web.Request) -> web.Response:
        error = {"message": "this route needs an admin key, and the server has none", "code": "forbidden"}
        return web.json_response({"error": error}, status=403)


async def test_a_server_without_admin_keys_says_so_in_its_own_words(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 2)
    async with NoAdmin("client-s3cret") as server:
        code, out, err = await loadgen("replay", trace, "--url", server.url, LOADGEN_API_KEY="client-s3cret")
        assert code == 0, err
        told = "No figures of the engine: this route needs an admin key, and the server has none."
        assert err.startswith(told)
        assert told in " ".join(out.split())
        code, _, err = await loadgen("replay", trace, "--url", server.url, "--admin-key", "client-s3cret")
    assert code == 3
    assert "/engine/snapshot answered 403: this route needs an admin key, and the server has none" in err


class Reserved(Locked):
    """Another server, which refuses all that it does not know."""

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "golden", "owned_by": "somebody"}]})


async def test_a_server_without_engine_figures_is_not_said_to_have_them_for_a_key(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 2)
    async with Reserved("client-s3cret") as server:
        code, out, err = await loadgen("replay", trace, "--url", server.url, LOADGEN_API_KEY="client-s3cret")
    assert (code, server.refused) == (0, 1), err
    assert "admin key" not in out + err


async def test_a_refused_admin_key_ends_it_before_the_run(tmp_path: Path) -> None:
    trace, out = write_trace(tmp_path / "t.jsonl", 2), tmp_path / "run.jsonl"
    async with Locked("client-s3cret") as server:
        code, printed, err = await loadgen(
            *("replay", trace, "--url", server.url, "--out", out),
            LOADGEN_API_KEY="client-s3cret",
            LOADGEN_ADMIN_KEY="wr0ng",
        )
    assert (code, printed, server.served) == (3, "", [])
    assert "the engine's own routes refuse the key; give the admin key with --admin-key or --admin-key-file" in err
    assert "wr0ng" not in err
    assert not out.exists()


async def test_each_request_has_an_id_and_the_report_names_one_that_failed(tmp_path: Path) -> None:
    trace, kept = write_trace(tmp_path / "t.jsonl", 8), tmp_path / "figures.json"
    error = {"error": {"message": "full", "code": "queue_full"}}
    full = Script(status=429, body=error, headers={"Retry-After": "0.05"})

    def script(_: dict[str, Any]) -> Script:
        return full if len(server.served) % 2 else answer(["a", "b"])

    async with GoldenServer(script) as server:
        code, out, err = await loadgen("replay", trace, "--url", server.url, "--json", kept)
        ids = [one.request_id for one in server.served]
    assert code == 1, err
    assert len(set(ids)) == 8
    document = json.loads(kept.read_text())
    assert document["summary"]["failures"] == {"HTTP 429 queue_full": 4}
    first = document["first_failures"]["HTTP 429 queue_full"]
    assert first["request_id"] in ids
    assert first["request_id"].endswith(f"-{first['session'].removeprefix('s')}-0")
    assert first["request_id"] in out
    async with GoldenServer(script) as server:
        code, out, _ = await loadgen("replay", trace, "--url", server.url, "--json", kept, "--retry-refused", 9)
    summary = json.loads(kept.read_text())["summary"]
    assert (code, summary["failures"]) == (0, {})
    assert summary["refusals"] == summary["retries"] > 0
    assert f"The server refused {summary['refusals']} times" in " ".join(out.split())
