"""The client against a golden server: counts are exact, times are the server's own within a wide slack."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from golden import Cut, GoldenServer, Script, Stall, Write, answer, chunk, done, event, finish, role, text, usage

from loadgen.client import ChatRequest, Message, Response, complete, open_http
from loadgen.metrics import summarize
from loadgen.outcome import Outcome, RequestRecord

SLACK = 0.25  # seconds that a busy machine may add between a write and its arrival


async def ask(script: Script, timeout: float = 20.0) -> tuple[Response, GoldenServer]:
    async with GoldenServer(lambda _: script) as server, open_http() as http:
        response = Response()
        request = ChatRequest("golden", [Message("user", "Hi")], max_tokens=4, temperature=0.5, seed=9)
        await complete(http, f"{server.url}/v1/chat/completions", request, response, timeout, lambda: None)
        return response, server


def as_record(response: Response) -> RequestRecord:
    return RequestRecord(
        "s",
        0,
        4,
        response.sent,
        response.outcome,
        sent=response.sent,
        chunks=tuple(response.chunks),
        ended=response.ended,
        usage=response.usage is not None,
        output_tokens=response.usage.completion_tokens if response.usage else len(response.chunks),
    )


async def test_a_whole_answer_and_what_was_asked() -> None:
    response, server = await ask(answer(["a", "b", "c"], prompt=11))
    assert response.outcome is Outcome.COMPLETED
    assert response.text == "abc"
    assert response.usage is not None
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (11, 3)
    assert len(response.chunks) == 3
    assert server.served[0].body == {
        "model": "golden",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 4,
        "temperature": 0.5,
        "seed": 9,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_times_are_the_servers_own() -> None:
    script = Script(
        [
            role(),  # at once: TTFT is not here
            text("a", 0.4),
            text("b", 0.2),
            text("c", 0.3),
            finish(0.3),  # neither E2E nor ITL reach to the finish, the usage or the end
            usage(5, 3, 0.3),
            done(0.3),
        ]
    )
    response, server = await ask(script)
    served = server.served[0]
    assert response.sent is not None
    for ours, theirs in zip(response.chunks, served.content_times, strict=True):
        assert theirs <= ours <= theirs + SLACK
    assert response.sent <= served.received
    figures = summarize([as_record(response)])
    first, last = served.content_times[0], served.content_times[-1]
    slack = SLACK * 1000
    assert figures["mean_ttft_ms"] == pytest.approx((first - response.sent) * 1000, abs=slack)
    assert figures["mean_e2el_ms"] == pytest.approx((last - response.sent) * 1000, abs=slack)
    assert figures["mean_tpot_ms"] == pytest.approx((last - first) * 1000 / 2, abs=slack)
    assert figures["count_itl"] == 2
    assert figures["max_itl_ms"] == pytest.approx(300, abs=slack)


async def test_several_tokens_a_chunk_and_empty_chunks() -> None:
    script = Script([role(), text(" one two"), text(""), text(" three four five"), finish(), usage(3, 5), done()])
    response, _ = await ask(script)
    assert response.text == " one two three four five"
    assert len(response.chunks) == 2  # the empty chunk carries nothing
    figures = summarize([as_record(response)])
    assert (figures["total_output_tokens"], figures["total_chunks"], figures["token_source"]) == (5, 2, "usage")


async def test_without_usage_chunks_are_counted_and_the_source_says_so() -> None:
    response, _ = await ask(Script([role(), text("a"), text("b"), finish(), done()]))
    assert response.outcome is Outcome.COMPLETED
    figures = summarize([as_record(response)])
    assert (figures["total_output_tokens"], figures["token_source"]) == (2, "chunks")


@pytest.mark.parametrize(
    "delta", [{"reasoning": "hm"}, {"reasoning_content": "hm"}, {"tool_calls": [{"index": 0, "id": "x"}]}]
)
async def test_ttft_knows_reasoning_and_tool_calls(delta: dict[str, Any]) -> None:
    thought = Write(event(chunk(delta)), 0.05, content=True)
    response, server = await ask(Script([role(), thought, text("a", 0.3), finish(), usage(1, 2), done()]))
    assert len(response.chunks) == 2
    assert response.chunks[0] == pytest.approx(server.served[0].content_times[0], abs=SLACK)
    assert response.text == "a"


async def test_utf8_split_across_network_writes() -> None:
    whole = b"".join(event(chunk({"content": word})) for word in ("äöü", "日本語", "🌍👩‍👩‍👧"))
    single_bytes = [Write(whole[i : i + 1], 0.001) for i in range(len(whole))]
    response, _ = await ask(Script([role(), *single_bytes, finish(), usage(2, 9), done()]))
    assert response.outcome is Outcome.COMPLETED
    assert response.text == "äöü日本語🌍👩‍👩‍👧"
    assert len(response.chunks) == 3


async def test_many_events_in_one_network_write() -> None:
    burst = b"".join(event(chunk({"content": "x"})) for _ in range(20_000))  # over a megabyte
    response, _ = await ask(Script([role(), Write(burst), finish(), usage(2, 20_000), done()]))
    assert (len(response.chunks), response.outcome) == (20_000, Outcome.COMPLETED)


async def test_a_clean_end_after_the_finish_reason_is_complete_without_done() -> None:
    response, _ = await ask(Script([role(), text("a"), finish()]))
    assert response.outcome is Outcome.COMPLETED


async def test_http_error_in_the_servers_words() -> None:
    body = {"error": {"message": "max_tokens is too large", "type": "invalid_request_error"}}
    response, server = await ask(Script(status=400, body=body))
    assert response.outcome is Outcome.HTTP_ERROR
    assert response.detail == "400: max_tokens is too large"
    assert len(server.served) == 1  # no retry


async def test_overload_is_not_retried() -> None:
    response, server = await ask(Script(status=503, body={"detail": "busy"}))
    assert response.outcome is Outcome.HTTP_ERROR
    assert "busy" in response.detail
    assert len(server.served) == 1


async def test_cut_stream_keeps_what_came() -> None:
    response, server = await ask(Script([role(), text("a"), text("b", 0.05), Write(b"data: {", 0.05), Cut()]))
    assert response.outcome is Outcome.CUT
    assert (response.text, len(response.chunks)) == ("ab", 2)
    assert len(server.served) == 1


async def test_connection_dropped_before_any_answer() -> None:
    response, _ = await ask(Script([Cut()]))
    assert response.outcome is Outcome.CUT


async def test_clean_end_without_finish_reason_is_a_cut() -> None:
    response, _ = await ask(Script([role(), text("a")]))
    assert response.outcome is Outcome.CUT
    assert "before a finish_reason" in response.detail


@pytest.mark.parametrize("script", [Script([role(), text("a"), Stall()]), Script(before_headers=3600.0)])
async def test_stall_is_a_timeout(script: Script) -> None:
    response, _ = await ask(script, timeout=0.4)
    assert response.outcome is Outcome.TIMEOUT
    assert "0.4 s" in response.detail


async def test_error_inside_the_stream() -> None:
    bad = Write(event({"error": {"message": "out of memory", "code": 500}}))
    response, _ = await ask(Script([role(), text("a"), bad, done()]))
    assert (response.outcome, response.detail) == (Outcome.SERVER_ERROR, "out of memory")


@pytest.mark.parametrize(
    "payload",
    [b"data: not json\n\n", b'data: {"choices": 3}\n\n', b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'],
)
async def test_nonsense_in_the_stream(payload: bytes) -> None:
    response, _ = await ask(Script([role(), Write(payload), done()]))
    assert response.outcome is Outcome.BAD_STREAM


async def test_an_answer_that_is_no_stream() -> None:
    response, _ = await ask(Script(body={"choices": []}))
    assert response.outcome is Outcome.BAD_STREAM
    assert "application/json" in response.detail


async def test_nobody_listens() -> None:
    async with open_http() as http:
        response = Response()
        request = ChatRequest("m", [], 1, 0.0, 0)
        await complete(http, "http://127.0.0.1:9/v1/chat/completions", request, response, 5.0, lambda: None)
    assert response.outcome is Outcome.CONNECTION


async def test_cancelling_leaves_it_interrupted() -> None:
    async with GoldenServer(lambda _: Script([role(), text("a"), Stall()])) as server, open_http() as http:
        response = Response()
        request = ChatRequest("m", [], 1, 0.0, 0)
        arrived = asyncio.Event()
        url = f"{server.url}/v1/chat/completions"
        task = asyncio.create_task(complete(http, url, request, response, 60.0, arrived.set))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (response.outcome, response.text) == (Outcome.INTERRUPTED, "a")


async def test_no_hidden_connection_limit() -> None:
    """300 requests are answered only once all 300 have arrived: a limit of 100 connections would hang."""
    count = 300
    everyone = asyncio.Event()

    class Gate(GoldenServer):
        async def _answer(self, request: Any, script: Script, served: Any) -> Any:
            if len(self.served) == count:
                everyone.set()
            await everyone.wait()
            return await super()._answer(request, script, served)

    async with Gate(lambda _: answer(["a"])) as server, open_http() as http:
        responses = [Response() for _ in range(count)]
        request = ChatRequest("m", [], 1, 0.0, 0)
        url = f"{server.url}/v1/chat/completions"
        await asyncio.gather(*(complete(http, url, request, r, 60.0, lambda: None) for r in responses))
    assert {r.outcome for r in responses} == {Outcome.COMPLETED}
    assert server.peak_in_flight == count


def test_the_clock_is_monotonic() -> None:
    from loadgen import client

    assert client.clock is time.monotonic
