"""What answers at an address: each kind of server by its own page, and why one cannot be read, in words."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import suppress

import pytest

from tests.servers.certificates import make_authority
from tests.servers.pages import KINDS
from tests.servers.stand_in import StandIn
from tui.sources.finder import NO_KEY, Found, NotFound, ask_version, find
from tui.sources.http import Http
from tui.sources.targets import HttpSettings, Target, target


async def look(server, settings=HttpSettings(), timeout=10.0, url=None):  # noqa: B008
    async with Http(target(url or server.url), settings, timeout) as http:
        return await find(http)


def address_of(server):
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_is_known_by_its_page(kind):
    async with StandIn(kind, version="9.8.7") as server:
        server.engine.serve(2)
        async with Http(target(server.url), HttpSettings(), 10) as http:
            found = await find(http)
            assert isinstance(found, Found)
            assert found.kind == ("vllm" if kind == "vllm-v0" else kind)
            assert found.path == server.path
            assert found.answer.text.startswith("# HELP")
            assert await ask_version(http, found.kind) == ("" if kind == "triton" else "9.8.7")


async def test_names_as_a_forwarder_writes_them_are_known():
    async with StandIn("vllm") as server:
        server.engine.serve(1)
        server.edit = lambda text: text.replace("vllm:", "vllm_")
        found = await look(server)
        assert isinstance(found, Found)
        assert found.kind == "vllm"


@pytest.mark.parametrize(
    ("kind", "mode", "phase", "words"),
    [
        ("vllm", "unready", "failing", "not ready to serve: HTTP 503: the model is loading"),
        ("vllm", "locked", "locked", NO_KEY),
        ("vllm", "garbage", "failing", "its metrics cannot be read: cannot read this line"),
        ("vllm", "cut", "failing", "the connection was cut"),
        (
            "vllm",
            "html",
            "foreign",
            "vLLM without metrics: start it without --disable-log-stats (/metrics has no",
        ),
        (
            "sglang",
            "none",
            "foreign",
            "SGLang without metrics: start it with --enable-metrics (/metrics answers HTTP",
        ),
        ("llama.cpp", "none", "foreign", "llama.cpp without metrics: start it with --metrics"),
        (
            "tensorrt-llm",
            "none",
            "foreign",
            "TensorRT-LLM without metrics: its configuration needs return_perf",
        ),
        ("tgi", "none", "foreign", "an OpenAI API of a server not known here (/metrics answers HTTP 404)"),
        ("triton", "none", "foreign", "no server that is known here (paged-engine, vLLM, SGLang, "),
        ("triton", "binary", "foreign", "no server that is known here"),
        ("vllm", "moved", "foreign", "/metrics redirects to https://elsewhere.example/metrics, which is not followed"),
    ],
)
async def test_why_one_cannot_be_read(kind, mode, phase, words):
    async with StandIn(kind) as server:
        server.engine.serve(1)
        server.mode = mode
        outcome = await look(server)
        assert isinstance(outcome, NotFound)
        assert (outcome.phase, outcome.reason[: len(words)]) == (phase, words)
        assert outcome.reason.isprintable()


async def test_nothing_there_and_nothing_coming(monkeypatch):
    async with StandIn() as server:
        server.mode = "hang"
        outcome = await look(server, timeout=0.2)
        assert (outcome.phase, outcome.reason) == ("failing", "no answer within 0.2 s")
        server.mode = "drip"
        outcome = await look(server, timeout=0.3)
        assert (outcome.phase, outcome.reason) == ("failing", "no whole answer within 0.3 s")
        monkeypatch.setattr("tui.sources.http.MAX_ANSWER", 1 << 20)
        server.mode = "endless"
        outcome = await look(server)
        assert (outcome.phase, outcome.reason) == ("foreign", "it answers with more than 1 MiB")
    outcome = await look(server)
    assert (outcome.phase, outcome.reason) == ("failing", "nothing answers there")


async def test_keys_and_headers_open_what_is_locked():
    async with StandIn(key="k3y") as server:
        server.engine.serve(1)
        assert (await look(server)).reason == NO_KEY
        wrong = await look(server, HttpSettings(api_key="other"))
        assert (wrong.phase, wrong.reason) == ("locked", "it refuses the key: HTTP 401")
        by_key = await look(server, HttpSettings(api_key="k3y"))
        by_header = await look(server, HttpSettings(headers=(("Authorization", "Bearer k3y"),)))
        assert isinstance(by_key, Found)
        assert isinstance(by_header, Found)
        await look(server, url=server.url.replace("//", "//me:w%40rd@"))
        assert server.headers[-1]["Authorization"] == "Basic bWU6d0ByZA=="
        assert "gzip" in server.headers[-1]["Accept-Encoding"]


async def test_a_redirect_takes_no_key_along():
    async with StandIn() as other, StandIn() as server:
        server.mode, server.moved_to = "moved", other.url
        outcome = await look(server, HttpSettings(api_key="k3y"))
        assert isinstance(outcome, NotFound)
        assert outcome.reason == f"/metrics redirects to {other.url}/metrics, which is not followed: name that address"
        assert other.asked == []


async def test_certificates(tmp_path):
    authority = make_authority(tmp_path)
    async with StandIn("sglang", tls=authority.server, key="k3y") as server:
        server.engine.serve(1)
        unknown = await look(server, HttpSettings(api_key="k3y"))
        assert unknown.phase == "failing"
        assert unknown.reason.startswith("no TLS with what answers there")
        assert unknown.reason.endswith("--ca-file names who is to be believed")
        assert server.asked == []  # the key was told to nobody
        for settings in (
            HttpSettings(api_key="k3y", ca_file=authority.ca),
            HttpSettings(api_key="k3y", insecure=True),
        ):
            found = await look(server, settings)
            assert isinstance(found, Found)
            assert found.kind == "sglang"
        plain = await look(server, url=server.url.replace("https:", "http:"))
        assert isinstance(plain, NotFound)


async def test_a_certificate_of_another_name_is_refused(tmp_path):
    authority = make_authority(tmp_path, "DNS:other.example")
    async with StandIn(tls=authority.server) as server:
        outcome = await look(server, HttpSettings(ca_file=authority.ca))
        assert outcome.phase == "failing"
        assert "IP address mismatch" in outcome.reason
        assert "--ca-file" not in outcome.reason  # it is not who is to be believed
        assert isinstance(await look(server, HttpSettings(insecure=True)), Found)


async def test_zipped_and_plain_pages_are_the_same():
    texts = []
    for zipped in (True, False):
        async with StandIn(zipped=zipped, bulk=300) as server:
            server.engine.serve(1)
            found = await look(server)
            assert isinstance(found, Found)
            texts.append(found.answer.text)
    assert texts[0] == texts[1]


def test_an_address_shows_no_user():
    one = target("http://me:s3cret@h:1/llm")
    assert one == Target("h:1/llm", "http://h:1/llm", "me:s3cret")


@pytest.mark.parametrize("told", ["gzip, gzip", "br", "gz\x1b[31mip"])
async def test_what_is_packed_in_a_way_that_nobody_asked_for_is_not_unpacked(told):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        bomb = gzip.compress(gzip.compress(b"\n" * (64 << 20)))  # what is in it is not even valid
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {told}\r\nContent-Length: {len(bomb)}\r\n\r\n"
        writer.write(head.encode() + bomb)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        found = await look(None, url=address_of(server))
    assert (found.phase, found.reason.isprintable()) == ("failing", True)
    if "\x1b" not in told:
        assert found.reason == f"it packs its answer as '{told}', and gzip or deflate was asked for"


async def test_a_connection_that_rested_is_not_used_again(monkeypatch):
    monkeypatch.setattr("tui.sources.http.IDLE_SECONDS", 0.2)
    opened = []

    async def answer(reader, writer):
        opened.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, Http(target(address_of(server)), HttpSettings(), 5) as http:
        assert [(await http.get("/")).text for _ in range(3)] == ["ok"] * 3
        await asyncio.sleep(0.3)
        assert (await http.get("/")).text == "ok"
    assert len(opened) >= 2
