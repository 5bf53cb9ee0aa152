"""HTTP at the border: what is not an engine is named, events are cut right, refusals keep the engine's words."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest
from aiohttp import web

from engine.protocol import PROTOCOL_VERSION, BlockText, Control, Gap, RequestText, encode
from tui.client import HttpEngine, _reason, events_of
from tui.engine_api import Down, Locked, Missing, NotAnEngine, Refused, Unreachable
from tui.sources.targets import HttpSettings


@asynccontextmanager
async def serving(**handlers):
    """A small server: paths with `/` as `__`, the method before them."""
    app = web.Application()
    for name, handler in handlers.items():
        method, path = name.split("__", 1)
        app.router.add_route(method.upper(), "/" + path.replace("__", "/"), handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine = HttpEngine(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield engine
    finally:
        await engine.close()
        await runner.cleanup()


def answering(body, status=200):
    async def handler(request):
        return web.Response(body=body, status=status)

    return handler


async def test_loads_are_read_and_an_engine_too_old_for_them_is_told():
    told = b'{"loads": []}'
    async with serving(get__engine__loads=answering(told)) as engine:
        assert await engine.loads() == ()
    async with serving(get__engine__loads=answering(b'{"loads": [{"id": "a"}]}')) as engine:
        with pytest.raises(NotAnEngine, match="not with a load"):
            await engine.loads()
    async with serving() as engine:
        with pytest.raises(Missing, match="this engine does not tell loads"):
            await engine.loads()


async def test_the_key_goes_with_every_question_and_into_no_message():
    asked = []

    async def locked(request):
        asked.append(request.headers.get("Authorization"))
        return web.Response(status=401)

    paths = [("snapshot", "get"), ("steps", "get"), ("loads", "get"), ("control", "patch"), ("requests__a", "delete")]
    async with serving(**{f"{method}__engine__{path}": locked for path, method in paths}) as open_engine:
        engine = HttpEngine(open_engine.url, HttpSettings(admin_key="s3cret"))
        told = []
        for work in (engine.snapshot(), anext(engine.steps(1)), engine.loads()):
            with pytest.raises(Locked, match="it refuses the key: HTTP 401") as error:
                await work
            told.append(str(error.value))
        for work in (engine.change({}), engine.cancel("a")):
            with pytest.raises(Refused, match="HTTP 401") as error:
                await work
            told.append(str(error.value))
        await engine.close()
    assert asked == ["Bearer s3cret"] * 5
    assert not any("s3cret" in words for words in told)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            b'{"status": "ok", "restarts": 1, "last_failure": {"reason": "it was\\nkilled", "unix": 1.5}}',
            "it was killed",
        ),
        (b'{"status": "ok", "restarts": 0}', ""),
        (b'{"last_failure": {"reason": 7}}', ""),
        (b'{"last_failure": "x"}', ""),
        (b"<html>", ""),
    ],
)
async def test_the_last_failure_is_the_engines_own_word(answer, reason):
    async with serving(get__health=answering(answer)) as engine:
        assert await engine.failure() == reason


async def test_a_key_that_opens_too_little_is_told_in_the_engines_words():
    body = b'{"error": {"message": "this route needs an admin key, and an API key came"}}'
    async with serving(get__engine__snapshot=answering(body, 403)) as open_engine:
        engine = HttpEngine(open_engine.url, HttpSettings(admin_key="s3cret"))
        with pytest.raises(Locked, match=r"^this route needs an admin key, and an API key came$"):
            await engine.snapshot()
        await engine.close()


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (b'{"status": "unavailable", "reason": "the server is\\nshutting down"}', 503, "the server is shutting down"),
        (b'{"status": "ok", "restarts": 0}', 200, ""),
        (b'{"reason": 7}', 503, ""),
        (b"[1]", 503, ""),
        (b"<html>", 404, ""),
    ],
)
async def test_why_no_requests_are_taken_is_the_engines_own_word(answer, status, reason):
    async with serving(get__health=answering(answer, status)) as engine:
        assert await engine.unready() == reason
    nobody = HttpEngine("http://127.0.0.1:1")
    assert await nobody.unready() == ""
    await nobody.close()


async def test_nothing_there_is_unreachable():
    engine = HttpEngine("http://127.0.0.1:1")
    with pytest.raises(Unreachable, match="nothing answers there"):
        await engine.snapshot()
    await engine.close()


@pytest.mark.parametrize(
    ("body", "status", "error", "words"),
    [
        (b"<html>", 200, NotAnEngine, "not with an engine's snapshot"),
        (b"{}", 200, NotAnEngine, "not with an engine's snapshot"),
        (b'{"type": "snapshot", "a": ' + b"[" * 100_000, 200, NotAnEngine, "not with an engine's snapshot"),
        (b'{"type": "snapshot", "a": "\xff"}', 200, NotAnEngine, "not with an engine's snapshot"),
        (b'{"type": "snapshot", "engine": {"protocol": 99}}', 200, NotAnEngine, "the engine speaks protocol 99"),
        (b"", 404, NotAnEngine, "answers HTTP 404; a paged-engine answers 200"),
        (b"", 401, Locked, "needs an admin key: --admin-key or --admin-key-file"),
        (b"", 403, Locked, "needs an admin key: --admin-key or --admin-key-file"),
        (b'{"error": {"message": "the server has\\nnone"}}', 403, Locked, "^the server has none$"),
        (
            b'{"error": {"message": "the engine is  starting again:\\nit died"}}',
            503,
            Down,
            "the engine is starting again: it d",
        ),
        (b"loading", 503, Unreachable, "HTTP 503: not ready"),
    ],
)
async def test_what_answers_is_told(body, status, error, words):
    async with serving(get__engine__snapshot=answering(body, status)) as engine:
        with pytest.raises(error, match=words):
            await engine.snapshot()


@pytest.mark.parametrize(
    ("start", "words"), [(b"x", "not with an engine's snapshot"), (b'{"a": "', "answers with more than 200,000 bytes")]
)
async def test_an_answer_without_an_end_is_given_up(monkeypatch, start, words):
    monkeypatch.setattr("tui.client.MAX_ANSWER", 200_000)

    async def endless(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(start + b"x" * 50_000)

    async with serving(get__engine__snapshot=endless) as engine:
        with pytest.raises(NotAnEngine, match=words):
            await engine.snapshot()


async def test_an_answer_that_trickles_is_given_up(monkeypatch):
    monkeypatch.setattr("tui.client.WHOLE_TIMEOUT", 0.1)

    async def trickling(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    async with serving(get__engine__snapshot=trickling) as engine:
        with pytest.raises(Unreachable, match="no whole answer"):
            await engine.snapshot()


async def test_an_event_without_an_end_is_given_up(monkeypatch):
    monkeypatch.setattr("tui.client.MAX_ANSWER", 200_000)

    async def chunks():
        while True:
            yield b"data: " + b"x" * 50_000

    with pytest.raises(NotAnEngine, match="more than 200,000 bytes"):
        async for _ in events_of(chunks()):
            pass


async def test_records_in_brackets_without_end_are_no_engine():
    async def steps(request):
        return web.Response(body=b'data: {"type": "step", "a": ' + b"[" * 100_000 + b"\n\n")

    async with serving(get__engine__steps=steps) as engine:
        with pytest.raises(NotAnEngine, match="does not decode"):
            await anext(engine.steps(1))


async def test_a_certificate_that_is_not_trusted_is_told():
    error = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")
    assert "no TLS" in _reason(error)
    assert "self-signed" in _reason(error)


async def test_a_newer_protocol_is_named(recording):
    replace, next_version = msgspec.structs.replace, PROTOCOL_VERSION + 1
    newer = replace(recording[0], engine=replace(recording[0].engine, protocol=next_version))
    async with serving(get__engine__snapshot=answering(encode(newer))) as engine:
        with pytest.raises(NotAnEngine, match=f"protocol {next_version}; this paged-top knows {PROTOCOL_VERSION}"):
            await engine.snapshot()


async def test_steps_are_records_and_gaps_until_the_stream_ends(recording):
    items = [recording[1], Gap(2, 9), recording[10]]

    async def stream(request):
        assert request.query["from"] == "1"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": hello\n\n")
        for item in items:
            kind = b"gap" if isinstance(item, Gap) else b"step"
            event = b"event: " + kind + b"\ndata: " + encode(item) + b"\n\n"
            await response.write(event[:40])
            await asyncio.sleep(0.01)
            await response.write(event[40:])
        return response

    async with serving(get__engine__steps=stream) as engine:
        steps = engine.steps(1)
        assert [await anext(steps) for _ in items] == items
        with pytest.raises(Unreachable, match="closed the stream"):
            await anext(steps)


async def test_a_malformed_record_is_no_engine(recording):
    async with serving(get__engine__steps=answering(b'data: {"type": "step", "seq": "x"}\n\n')) as engine:
        with pytest.raises(NotAnEngine, match="does not decode"):
            await anext(engine.steps(1))


@pytest.mark.parametrize("cut", range(1, 12))
@pytest.mark.parametrize(
    "raw",
    [b"id: 1\r\ndata: {1}\r\n\r\n: x\n\ndata: {2}\n\ndata: {3", b"data: {1}\r\n\r\ndata: {2}\r\n\r\n"],
)
async def test_events_are_whole_however_they_are_cut(cut, raw):
    async def chunks():
        for start in range(0, len(raw), cut):
            yield raw[start : start + cut]

    assert [data async for data in events_of(chunks())] == [b"{1}", b"{2}"]


async def test_control_answers_and_refusals():
    async def patch(request):
        changes = await request.json()
        if changes == {"batching": "static"}:
            return web.json_response({**msgspec.structs.asdict(Control(batching="static")), "step": 7})
        if changes == {"allocation": "paged"}:
            return web.json_response({"fine": True})
        return web.json_response({"error": {"message": "batching: must be one of"}}, status=400)

    async with serving(patch__engine__control=patch) as engine:
        accepted = await engine.change({"batching": "static"})
        assert (accepted.control.batching, accepted.step) == ("static", 7)
        with pytest.raises(Refused, match="HTTP 400: batching: must be one of"):
            await engine.change({"batching": "sttic"})
        with pytest.raises(Refused, match="not a control"):
            await engine.change({"allocation": "paged"})


def failing(status, code="request_not_found", message="id: no live request 'a'"):
    return answering(msgspec.json.encode({"error": {"message": message, "code": code}}), status)


async def test_texts_are_asked_for_by_name_and_place():
    request = RequestText(7, "cmpl-1/2 ?", 2, 3, (5,), ("x",))
    block = BlockText(7, 12, "ab", None, (5, 6), ("x", "y"))

    async def requested(asked):
        assert (asked.match_info["id"], asked.query["from"]) == ("cmpl-1/2 ?", "3")
        return web.Response(body=encode(request))

    paths = {"get__engine__requests__{id}": requested, "get__engine__blocks__12": answering(encode(block))}
    async with serving(**paths) as engine:
        assert await engine.request_text("cmpl-1/2 ?", 3) == request
        assert await engine.block_text(12) == block


@pytest.mark.parametrize(
    ("handler", "error", "words"),
    [
        (failing(404), Missing, "request a has ended"),
        (failing(404, None, "no such route: /engine/requests/a"), Missing, "this engine does not tell texts"),
        (answering(b"not found", 404), Missing, "this engine does not tell texts"),
        (failing(403, "text_off", "off"), Missing, r"the engine tells no text \(--no-text\)"),
        (failing(403, "forbidden", "not for you"), Locked, "not for you"),
        (answering(b"", 503), Unreachable, "HTTP 503"),
        (answering(b"", 400), NotAnEngine, "answers HTTP 400"),
        (answering(b"{}"), NotAnEngine, "not with a text"),
    ],
)
async def test_texts_that_there_are_not(handler, error, words):
    async with serving(get__engine__requests__a=handler) as engine:
        with pytest.raises(error, match=words):
            await engine.request_text("a", 0)


async def test_a_block_that_there_is_not():
    handler = failing(404, "block_not_found", "block: must be from 0 to 9")
    async with serving(get__engine__blocks__10=handler) as engine:
        with pytest.raises(Missing, match="there is no block 10"):
            await engine.block_text(10)


async def test_cancelling_says_who_ended_or_keeps_the_engines_words():
    paths = {
        "delete__engine__requests__a": answering(b'{"cancelled": ["a", "a-1"]}'),
        "delete__engine__requests__b": failing(404, message="id: no live request 'b'"),
        "delete__engine__requests__c": answering(b"[]"),
    }
    async with serving(**paths) as engine:
        assert await engine.cancel("a") == ("a", "a-1")
        with pytest.raises(Refused, match="HTTP 404: id: no live request 'b'"):
            await engine.cancel("b")
        with pytest.raises(Refused, match="does not say who ended"):
            await engine.cancel("c")
    nobody = HttpEngine("http://127.0.0.1:1")
    with pytest.raises(Unreachable, match="nothing answers there"):
        await nobody.cancel("a")
    with pytest.raises(Unreachable, match="nothing answers there"):
        await nobody.request_text("a", 0)
    await nobody.close()
