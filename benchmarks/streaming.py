"""A work over HTTP: each request at once to `/v1/completions`, with its prompt as token ids and `ignore_eos`.

Tokens are counted by the server's own `usage`: one that stops early, or does not take token ids, is an error.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from benchmarks.messages import Run
from benchmarks.works import Work

_USAGE = b'"usage":{'
_SHOWN = 300  # characters of a refusal


async def complete(
    http: aiohttp.ClientSession, url: str, model: str, work: Work, stream: bool, say: Callable[[str], None]
) -> Run:
    """Run a work; raises ValueError for an answer that is not what was asked for, and aiohttp's own errors."""
    done = 0

    async def one(prompt: tuple[int, ...], length: int) -> tuple[int, list[float]]:
        nonlocal done
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": length,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        async with http.post(f"{url}/v1/completions", data=json.dumps(body), headers=_JSON) as reply:
            if reply.status != 200:
                text = (await reply.text())[:_SHOWN]
                raise ValueError(f"{reply.status} for a prompt of token ids with ignore_eos: {text}")
            found = await _streamed(reply) if stream else _whole(await reply.read())
        made = found[0]
        if made != length:
            raise ValueError(f"made {made} tokens of {length}: this server does not honour ignore_eos or max_tokens")
        done += 1
        say(f"{done} of {len(work.prompts)} requests")
        return found

    begun = time.perf_counter()
    tasks = [asyncio.create_task(one(*pair)) for pair in zip(work.prompts, work.outputs, strict=True)]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    seconds = time.perf_counter() - begun
    tokens, times = answers[0]
    alone = len(answers) == 1 and len(times) > 1 and tokens > 1
    return Run(
        seconds,
        sum(made for made, _ in answers),
        token_seconds=(times[-1] - times[0]) / (tokens - 1) if alone else None,
        note="streamed" if stream else "not streamed",
    )


_JSON = {"Content-Type": "application/json"}


async def _streamed(reply: aiohttp.ClientResponse) -> tuple[int, list[float]]:
    """The tokens told by the usage at the end, and when chunks with text came. Chunks are not parsed: this client
    shares its cores with the server."""
    made, times = 0, []
    async for line in reply.content:
        if not line.startswith(b"data:"):
            continue
        if _USAGE in line.replace(b" ", b""):
            made = json.loads(line[5:])["usage"]["completion_tokens"]
        elif b'"error"' in line and b'"choices"' not in line:
            raise ValueError(line.decode("utf-8", "replace")[:_SHOWN])
        if b'"text"' in line:
            times.append(time.perf_counter())
    if not made:
        raise ValueError("the stream told no usage at its end: this server does not honour stream_options")
    return made, times


def _whole(body: bytes) -> tuple[int, list[float]]:
    return json.loads(body)["usage"]["completion_tokens"], []
