"""One request of a soak from its sending to its end. Whatever comes that is not an answer, or an error that says what
is wrong, is a finding."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from tests.soak.asked import Asked

PATIENCE = 60.0  # seconds: a request that takes longer hangs
STATED = {429: "queue_full", 500: "step_failed", 503: "engine_not_ready", 504: "deadline_exceeded"}
FINISHED = ("stop", "length", "abort", "deadline")


class Finding(Exception):
    """What should not have come."""


async def play(http: aiohttp.ClientSession, asked: Asked) -> str:
    """How it ended: `answered`, `left`, `cancelled`, or the code of a stated error. Raises Finding."""
    try:
        async with asyncio.timeout(PATIENCE), http.post(asked.path, json=asked.body) as response:
            if response.status != 200:
                return _stated(response.status, await response.read())
            if asked.leaving == "disconnects" and not asked.body.get("stream"):
                response.close()
                return "left"
            return await (_streamed if asked.body.get("stream") else _whole)(http, asked, response)
    except TimeoutError:
        raise Finding(f"no end within {PATIENCE:g} s") from None
    except aiohttp.ClientError as error:
        raise Finding(f"{type(error).__name__}: {error}") from error


async def leave_soon(http: aiohttp.ClientSession, asked: Asked, seconds: float) -> str:
    """Send a request that is answered as a whole, and leave before the answer."""
    playing = asyncio.create_task(play(http, asked))
    await asyncio.wait({playing}, timeout=seconds)
    if playing.done():
        return playing.result()
    playing.cancel()
    await asyncio.wait({playing})
    return "left"


async def _whole(_: aiohttp.ClientSession, asked: Asked, response: aiohttp.ClientResponse) -> str:
    answer = json.loads(await response.read())
    choices = answer["choices"]
    if len(choices) != asked.body.get("n", 1):
        raise Finding(f"{len(choices)} choices")
    for choice in choices:
        if choice["finish_reason"] not in FINISHED:
            raise Finding(f"finish_reason {choice['finish_reason']!r}")
    most = asked.body["max_tokens"] * max(asked.body.get(name, 1) for name in ("n", "best_of", "beam_width"))
    if answer["usage"]["completion_tokens"] > most:
        raise Finding(f"{answer['usage']['completion_tokens']} tokens of at most {most}")
    return "answered"


async def _streamed(http: aiohttp.ClientSession, asked: Asked, response: aiohttp.ClientResponse) -> str:
    """Read events to their end, or as far as its client does."""
    seen = 0
    ended: dict[int, str] = {}
    error = ""
    async for line in response.content:
        text = line.decode().rstrip("\r\n")
        if not text or text.startswith(":"):
            continue
        if not text.startswith("data: "):
            raise Finding(f"a line {text[:80]!r}")
        if text == "data: [DONE]":
            break
        event = json.loads(text[6:])
        if "error" in event:
            error = _code(event["error"])
            continue
        for choice in event["choices"]:
            if choice["index"] in ended:
                raise Finding("news of a choice that had ended")
            if choice["finish_reason"] is not None:
                ended[choice["index"]] = choice["finish_reason"]
        seen += 1
        if seen > asked.after and asked.leaving == "disconnects":
            response.close()
            return "left"
        if seen == asked.after + 1 and asked.leaving == "is cancelled":
            await cancel(http, event["id"])
    else:
        raise Finding("the stream ended without [DONE]")
    if error:
        return error
    if len(ended) != asked.body.get("n", 1) or not set(ended.values()) <= set(FINISHED):
        raise Finding(f"a stream that ended with {ended}")
    return "cancelled" if "abort" in ended.values() else "answered"


async def cancel(http: aiohttp.ClientSession, name: str) -> None:
    """End an answer from outside; it may have ended by itself, and the engine may be away."""
    async with http.delete(f"/engine/requests/{name}") as response:
        if response.status not in (200, 404, 503):
            raise Finding(f"cancelling answered {response.status}")


def _stated(status: int, body: bytes) -> str:
    try:
        code = _code(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        raise Finding(f"HTTP {status} with {body[:200]!r}") from None
    if STATED.get(status) != code:
        raise Finding(f"HTTP {status}: {body[:300].decode(errors='replace')}")
    return code


def _code(error: dict[str, Any]) -> str:
    if not error.get("message"):
        raise Finding("an error that says nothing")
    return str(error["code"])
