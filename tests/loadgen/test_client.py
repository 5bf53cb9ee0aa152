"""The client against a golden server: counts are exact, times are the server's own within a wide slack."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from golden import (
    Cut,
    GoldenServer,
    Script,
    Stall,
    Write,
    answer,
    chunk,
    completion_text,
    done,
    event,
    finish,
    role,
    text,
    usage,
    whole,
)

from loadgen import client
from loadgen.access import Access
from loadgen.asking import Payload
from loadgen.client import Response, complete, open_http
from loadgen.outcome import Outcome

SLACK = 0.25  # seconds that a busy machine may add between a write and its arrival
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def payload(path: str = CHAT) -> Payload:
    asked = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    body = {"model": "golden", "max_tokens": 4, "stream": True, **asked}
    return Payload(path, json.dumps(body).encode(), None, 4)


async def ask(script: Script | Iterable[Script], path: str = CHAT, **options: Any) -> tuple[Response, GoldenServer]:
    """Send one request, which is answered by a script, or by one after the other."""
    scripts = iter([script] * 100 if isinstance(script, Script) else script)
    async with GoldenServer(lambda _: next(scripts)) as server, open_http() as http:
        response = Response()
        options = {"timeout": 20.0, "on_chunk": lambda: None, **options}
        await complete(http, server.url, payload(path), response, **options)
        return response, server


async def test_a_whole_answer_and_what_was_asked() -> None:
    counted: list[int] = []
    response, server = await ask(answer(["a", "b", "c"], prompt=11), on_chunk=lambda: counted.append(1))
    assert (response.outcome, response.text, response.status) == (Outcome.COMPLETED, "abc", 200)
    assert response.usage is not None
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (11, 3)
    assert response.usage.cached_tokens is None
    assert len(response.chunks) == len(counted) == 3
    assert response.streamed
    assert server.served[0].path == CHAT
    assert server.served[0].body == json.loads(payload().body)


async def test_a_stream_of_completions() -> None:
    script = Script([completion_text("a"), completion_text(""), completion_text("b"), finish(), usage(1, 2), done()])
    response, server = await ask(script, COMPLETIONS)
    assert (response.outcome, response.text, len(response.chunks)) == (Outcome.COMPLETED, "ab", 2)
    assert server.served[0].path == COMPLETIONS


async def test_times_are_the_servers_own() -> None:
    script = Script(
        [
            role(),  # at once: the first token is not here
            text("a", 0.4),
            text("b", 0.2),
            text("c", 0.3),
            finish(0.3),  # content does not reach to the finish, the usage or the end
            usage(5, 3, 0.3),
            done(0.3),
        ]
    )
    response, server = await ask(script)
    served = server.served[0]
    assert response.sent is not None
    assert response.ended is not None
    assert response.sent <= served.received
    for ours, theirs in zip(response.chunks, served.content_times, strict=True):
        assert theirs <= ours <= theirs + SLACK
    assert response.ended - response.chunks[-1] >= 0.9 - SLACK


async def test_cached_tokens_are_told() -> None:
    response, _ = await ask(Script([role(), text("a"), finish(), usage(20, 1, cached=16), done()]))
    assert response.usage is not None
    assert response.usage.cached_tokens == 16


@pytest.mark.parametrize("count", [-35, 10**23, 1.5])
async def test_what_is_no_count_is_not_believed(count: float) -> None:
    told = Write(event(chunk(usage={"prompt_tokens": 2, "completion_tokens": count})))
    response, _ = await ask(Script([role(), text("a"), finish(), told, done()]))
    assert response.outcome is Outcome.BAD_STREAM
    assert "completion_tokens" in response.detail


async def test_usage_in_every_chunk_counts_once() -> None:
    chunks = [Write(event(chunk({"content": "x"}, usage={"prompt_tokens": 2, "completion_tokens": n}))) for n in (1, 2)]
    response, _ = await ask(Script([role(), *chunks, finish(), done()]))
    assert response.usage is not None
    assert (response.usage.completion_tokens, len(response.chunks)) == (2, 2)


async def test_several_choices() -> None:
    """Every choice's chunks count, the first one's text is the answer, and it ends when all have."""
    script = Script([role(), text("a"), text("x", index=1), text("b"), text("y", index=1), finish(), finish(index=1)])
    response, _ = await ask(script)
    assert (response.outcome, response.text, len(response.chunks)) == (Outcome.COMPLETED, "ab", 4)
    response, _ = await ask(Script(script.steps[:-1]))
    assert response.outcome is Outcome.CUT


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "refusal"])
async def test_other_content_than_text(name: str) -> None:
    thought = Write(event(chunk({name: "hm"})), content=True)
    response, _ = await ask(Script([role(), thought, text("a"), finish(), usage(1, 2), done()]))
    assert (len(response.chunks), response.text) == (2, "a")


async def test_nulls_where_a_server_has_nothing_to_say() -> None:
    nothing: list[dict[str, Any]] = [
        {"choices": None},
        {"choices": [{"delta": None, "finish_reason": None}]},
        {"choices": [{"delta": {"content": None, "tool_calls": None}}], "usage": None, "error": None},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None}},
    ]
    response, _ = await ask(Script([text("a"), *[Write(event(one)) for one in nothing], finish(), done()]))
    assert (response.outcome, response.text, len(response.chunks)) == (Outcome.COMPLETED, "a", 1)


async def test_a_clean_end_after_the_finish_reason_is_complete_without_done() -> None:
    response, _ = await ask(Script([role(), text("a"), finish()]))
    assert response.outcome is Outcome.COMPLETED


async def test_connections_are_used_again() -> None:
    async with GoldenServer(lambda _: answer(["a", "b"])) as server, open_http() as http:
        for _ in range(5):
            await complete(http, server.url, payload(), Response(), timeout=20.0, on_chunk=lambda: None)
        assert (len(server.served), len(server.connections)) == (5, 1)


async def test_a_server_that_does_not_end_after_done_is_not_waited_for() -> None:
    response, _ = await ask(Script([role(), text("a"), finish(), done(), Stall()]), timeout=3600.0)
    assert response.outcome is Outcome.COMPLETED


async def test_stopping_after_done_leaves_it_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_DRAIN_TIME", 3600.0)
    response, _ = await ask(Script([role(), text("a"), finish(), done(), Stall()]), timeout=0.3)
    assert (response.outcome, response.detail) == (Outcome.COMPLETED, "")


# Answers in one piece


async def test_an_answer_in_one_piece() -> None:
    response, server = await ask(whole("a b c", prompt=9, completion=3), stream=False)
    assert (response.outcome, response.text, response.streamed) == (Outcome.COMPLETED, "a b c", False)
    assert response.usage is not None
    assert response.usage.completion_tokens == 3
    assert len(response.chunks) == 1
    assert server.served[0].content_times[0] <= response.chunks[0]


async def test_a_completion_in_one_piece() -> None:
    body = {"choices": [{"index": 0, "text": " a", "finish_reason": "length"}]}
    response, _ = await ask(Script(body=body), COMPLETIONS, stream=False)
    assert (response.outcome, response.text, response.usage) == (Outcome.COMPLETED, " a", None)


async def test_a_stream_that_was_not_asked_for_is_taken() -> None:
    response, _ = await ask(answer(["a", "b"]), stream=False)
    assert (response.outcome, response.streamed, len(response.chunks)) == (Outcome.COMPLETED, True, 2)


@pytest.mark.parametrize("body", [{"choices": []}, {"id": "x"}, {"choices": 3}])
async def test_one_piece_that_is_no_answer(body: dict[str, Any]) -> None:
    response, _ = await ask(Script(body=body), stream=False)
    assert response.outcome is Outcome.BAD_STREAM


async def test_an_error_with_status_200() -> None:
    response, _ = await ask(Script(body={"error": {"message": "out of memory"}}))
    assert (response.outcome, response.detail, response.status) == (Outcome.SERVER_ERROR, "out of memory", 200)


async def test_a_server_without_streaming() -> None:
    response, _ = await ask(whole("a b c"))
    assert response.outcome is Outcome.BAD_STREAM
    assert "application/json" in response.detail
    assert "--no-stream" in response.detail


# Failures, each told apart


async def test_http_error_in_the_servers_words() -> None:
    body = {"error": {"message": "max_tokens is too large", "type": "invalid_request_error"}}
    response, server = await ask(Script(status=400, body=body))
    assert (response.outcome, response.status) == (Outcome.HTTP_ERROR, 400)
    assert response.detail == "400: max_tokens is too large"
    assert len(server.served) == 1


async def test_the_key_is_sent_and_a_wrong_one_refused() -> None:
    async with GoldenServer(lambda _: answer(["a"]), api_key="right") as server:
        outcomes = []
        for key in ("right", "wrong"):
            response = Response()
            async with open_http(Access(key)) as http:
                await complete(http, server.url, payload(), response, timeout=20.0, on_chunk=lambda: None)
            outcomes.append((response.outcome, response.status, response.detail))
    completed = (Outcome.COMPLETED, 200, "")
    assert outcomes == [completed, (Outcome.HTTP_ERROR, 401, "401: Incorrect API key")]


async def test_an_empty_finish_reason_finishes_nothing() -> None:
    """As TGI has it in every chunk of a completion: a stream that is cut off is not whole for it."""
    choice = {"index": 0, "text": "a", "finish_reason": ""}
    cut, _ = await ask(Script([Write(event({"object": "text_completion", "choices": [choice]}))]), COMPLETIONS)
    assert (cut.outcome, cut.finish) == (Outcome.CUT, "")
    last = {**choice, "finish_reason": "eos_token"}
    whole_, _ = await ask(Script([Write(event({"choices": [choice]})), Write(event({"choices": [last]}))]), COMPLETIONS)
    assert (whole_.outcome, whole_.finish, whole_.done) == (Outcome.COMPLETED, "eos_token", False)


async def test_errors_as_tgi_and_older_llama_cpp_tell_them() -> None:
    overloaded = {"error": "Model is overloaded", "error_type": "overloaded"}
    response, _ = await ask(Script(status=429, body=overloaded))
    assert (response.detail, response.code) == ("429: Model is overloaded", "overloaded")
    line = b'error: {"code":500,"message":"the slot is gone","type":"server_error"}\n\n'
    response, _ = await ask(Script([role(), text("a"), Write(line)]))
    assert (response.outcome, response.detail) == (Outcome.SERVER_ERROR, "the slot is gone")


async def test_a_redirect_is_told_not_followed() -> None:
    response, server = await ask(Script(status=308, headers={"Location": "https://elsewhere/"}, body={}))
    assert response.outcome is Outcome.HTTP_ERROR
    assert "https://elsewhere/" in response.detail
    assert len(server.served) == 1


async def test_cut_stream_keeps_what_came() -> None:
    response, server = await ask(Script([role(), text("a"), text("b", 0.05), Write(b"data: {", 0.05), Cut()]))
    assert (response.outcome, response.status) == (Outcome.CUT, 200)
    assert (response.text, len(response.chunks)) == ("ab", 2)
    assert "dropped before the answer's end" in response.detail
    assert len(server.served) == 1


@pytest.mark.parametrize("script", [Script([Cut()]), Script(dropped=True)])
async def test_connection_dropped_before_any_content(script: Script) -> None:
    response, _ = await ask(script)
    assert response.outcome is Outcome.CUT
    assert response.detail


async def test_clean_end_without_finish_reason_is_a_cut() -> None:
    response, _ = await ask(Script([role(), text("a")]))
    assert response.outcome is Outcome.CUT
    assert "before a finish_reason" in response.detail


@pytest.mark.parametrize(
    ("script", "came"), [(Script([role(), text("a"), Stall()]), 1), (Script(before_headers=3600.0), 0)]
)
async def test_stall_is_a_timeout(script: Script, came: int) -> None:
    response, _ = await ask(script, timeout=0.4)
    assert response.outcome is Outcome.TIMEOUT
    assert "0.4 s" in response.detail
    assert f"{came} chunks" in response.detail


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "out of memory", "code": 500}},
        {"error": "out of memory", "error_type": "generation"},
        {"object": "error", "message": "out of memory", "code": 500},
    ],
)
async def test_error_inside_the_stream(error: dict[str, Any]) -> None:
    response, _ = await ask(Script([role(), text("a"), Write(event(error)), done()]))
    assert (response.outcome, response.detail) == (Outcome.SERVER_ERROR, "out of memory")


@pytest.mark.parametrize(
    "nonsense",
    [b"data: not json\n\n", b'data: {"choices": 3}\n\n', b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'],
)
async def test_nonsense_in_the_stream(nonsense: bytes) -> None:
    response, _ = await ask(Script([role(), Write(nonsense), done()]))
    assert response.outcome is Outcome.BAD_STREAM


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://nobody.invalid:80", "nothing"])
async def test_nobody_listens(address: str) -> None:
    response = Response()
    async with open_http() as http:
        await complete(http, address, payload(), response, timeout=20.0, on_chunk=lambda: None)
    assert (response.outcome, response.status) == (Outcome.CONNECTION, None)
    assert response.detail


async def test_cancelling_leaves_it_interrupted() -> None:
    async with GoldenServer(lambda _: Script([role(), text("a"), Stall()])) as server, open_http() as http:
        response, arrived = Response(), asyncio.Event()
        asking = complete(http, server.url, payload(), response, timeout=60.0, on_chunk=arrived.set)
        task = asyncio.create_task(asking)
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (response.outcome, response.text) == (Outcome.INTERRUPTED, "a")


# Retries


def busy(status: int = 429, retry_after: str = "0") -> Script:
    return Script(status=status, body={"error": {"message": "busy"}}, headers={"Retry-After": retry_after})


@pytest.mark.parametrize("script", [busy(429), busy(503), Script(dropped=True)])
async def test_nothing_is_tried_again_unless_told(script: Script) -> None:
    response, server = await ask(script)
    assert response.outcome in (Outcome.HTTP_ERROR, Outcome.CUT)
    assert (len(server.served), response.retries) == (1, 0)


@pytest.mark.parametrize("status", [429, 503])
async def test_overload_is_tried_again_counted_and_timed_from_the_first(status: int) -> None:
    response, server = await ask([busy(status), busy(status), answer(["a", "b"])], retries=3)
    assert (response.outcome, response.retries, response.status) == (Outcome.COMPLETED, 2, 200)
    assert response.text == "ab"
    assert response.sent is not None
    assert response.sent <= server.served[0].received


async def test_a_refusal_is_a_failure_by_its_status_and_code_unless_it_is_to_be_tried_again() -> None:
    full = Script(
        status=429, body={"error": {"message": "4096 wait", "code": "queue_full"}}, headers={"Retry-After": "0.1"}
    )
    response, server = await ask(full)
    assert (response.outcome, response.status, response.code) == (Outcome.HTTP_ERROR, 429, "queue_full")
    assert (len(server.served), response.refusals) == (1, 0)
    response, server = await ask([full, full, answer(["a"])], refused_retries=2, request_id="run-3-0")
    assert (response.outcome, response.retries, response.refusals) == (Outcome.COMPLETED, 2, 2)
    assert response.waited >= 0.2
    assert response.ended is not None
    assert response.sent is not None
    assert response.ended - response.sent >= response.waited  # it is in the latency
    assert [one.request_id for one in server.served] == ["run-3-0", "run-3-0-r1", "run-3-0-r2"]
    response, server = await ask(full, refused_retries=1)
    assert (response.outcome, response.refusals, len(server.served)) == (Outcome.HTTP_ERROR, 1, 2)


async def test_refusals_alone_are_tried_again_where_that_is_asked() -> None:
    response, server = await ask([Script(dropped=True), answer(["a"])], refused_retries=5)
    assert (response.outcome, len(server.served)) == (Outcome.CUT, 1)


async def test_a_server_that_asks_for_a_long_wait_is_believed_and_not_waited_for() -> None:
    response, server = await ask([busy(retry_after="61"), answer(["a"])], refused_retries=1, timeout=3600.0)
    assert (response.outcome, response.refusals, len(server.served)) == (Outcome.HTTP_ERROR, 0, 1)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"message": "it failed", "code": "step_failed"}, "step_failed"),
        ({"message": "it failed", "code": 500}, ""),
        ({"message": "it failed", "code": "a b\n"}, ""),
        ({"message": "it failed", "code": "x" * 41}, ""),
    ],
)
async def test_an_error_in_a_stream_has_the_servers_words_and_code(error: dict[str, Any], code: str) -> None:
    response, _ = await ask(Script([role(), text("a"), Write(event({"error": error}))]))
    assert (response.outcome, response.detail, response.code) == (Outcome.SERVER_ERROR, "it failed", code)
    assert len(response.chunks) == 1


async def test_retries_come_to_an_end() -> None:
    response, server = await ask(busy(), retries=2)
    assert (response.outcome, response.detail, response.status) == (Outcome.HTTP_ERROR, "429: busy", 429)
    assert (len(server.served), response.retries) == (3, 2)


async def test_a_server_may_refuse_very_often() -> None:
    """More often than seconds that double each time are a number."""
    response, _ = await ask([*([busy()] * 1030), answer(["a"])], refused_retries=2000)
    assert (response.outcome, response.refusals) == (Outcome.COMPLETED, 1030)


async def test_a_connection_dropped_before_the_status_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_RETRY", 0.01)
    response, _ = await ask([Script(dropped=True), answer(["a"])], retries=1)
    assert (response.outcome, response.retries) == (Outcome.COMPLETED, 1)


async def ask_twice(*scripts: Script) -> tuple[Response, GoldenServer]:
    """The second answer, to a request over the connection of the first."""
    left = iter(scripts)
    async with GoldenServer(lambda _: next(left)) as server, open_http() as http:
        for _ in range(2):
            response = Response()
            await complete(http, server.url, payload(), response, timeout=20.0, on_chunk=lambda: None)
        return response, server


async def test_a_request_that_meets_a_closed_connection_goes_to_another_at_once() -> None:
    """As with llama.cpp, which closes each connection after a stream and does not say so."""
    response, server = await ask_twice(answer(["a"]), Script(dropped=True), answer(["b"]))
    assert (response.outcome, response.text, response.retries) == (Outcome.COMPLETED, "b", 1)
    assert len(server.connections) == 2


async def test_so_does_one_whose_connection_is_reset() -> None:
    answered = b"".join(step.payload for step in answer(["a"]).steps if isinstance(step, Write))
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(answered)}\r\n\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer once, and reset the connection when the next request comes."""
        length = len(payload().body)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(length)
        writer.write(head + answered)
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, open_http() as http:
        for retries in (0, 1):
            response = Response()
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await complete(http, url, payload(), response, timeout=20.0, on_chunk=lambda: None)
            assert (response.outcome, response.text, response.retries) == (Outcome.COMPLETED, "a", retries)


async def test_but_not_from_a_new_one() -> None:
    response, server = await ask_twice(answer(["a"]), Script(dropped=True), Script(dropped=True))
    assert (response.outcome, response.retries) == (Outcome.CUT, 1)
    assert len(server.served) == 3


async def test_nor_where_the_server_may_have_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "UNREAD_SECONDS", 0.05)
    response, server = await ask_twice(answer(["a"]), Script(dropped=True, before_headers=0.2), answer(["b"]))
    assert (response.outcome, response.retries) == (Outcome.CUT, 0)
    assert len(server.served) == 2


@pytest.mark.parametrize(
    "script",
    [
        Script(status=500, body={}),
        Script(status=400, body={}),
        Script([role(), text("a"), Cut()]),
        Script([role(), Cut()]),  # the server has begun to answer
        Script([role(), Write(b"data: nonsense\n\n")]),
        Script([role(), Write(event({"error": "x"}))]),
    ],
)
async def test_what_may_have_been_served_is_not_tried_again(script: Script) -> None:
    response, server = await ask([script, answer(["b"])], retries=5)
    assert response.outcome.failed
    assert (len(server.served), response.retries) == (1, 0)


@pytest.mark.parametrize("later", ["2", lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True)])
async def test_the_servers_own_wait_is_kept(later: str | Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    told = later if isinstance(later, str) else later()
    response, _ = await ask([busy(retry_after=told), answer(["a"])], retries=1)
    assert (response.outcome, response.retries) == (Outcome.COMPLETED, 1)
    assert any(1.0 <= seconds <= 3.0 for seconds in waits)


async def test_no_wait_past_the_timeout() -> None:
    """The overload is told, not a timeout, and at once."""
    response, server = await ask(busy(retry_after="3600"), retries=5, timeout=60.0)
    assert (response.outcome, response.retries, len(server.served)) == (Outcome.HTTP_ERROR, 0, 1)


def test_the_clock_is_monotonic() -> None:
    assert client.clock is time.monotonic
