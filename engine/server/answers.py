"""The parts of an answer that chat and text completions share: usage, and running a generation either way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from engine.server.bodies import SamplingFields
from engine.server.errors import ApiError
from engine.server.events import EventStream
from engine.server.generation import Choice, Generation, Piece, SampledToken

Json = dict[str, Any]


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def total_usage(generation: Generation) -> Json:
    return usage(generation.prompt_tokens, generation.completion_tokens, generation.cached_tokens)


def json_response(body: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


class Answer(NamedTuple):
    """One choice, whole."""

    choice: Choice
    text: str
    tokens: list[SampledToken]


async def collect(generation: Generation) -> list[Answer]:
    """Run to the end. Raises ApiError."""
    texts: list[list[str]] = [[] for _ in generation.choices]
    tokens: list[list[SampledToken]] = [[] for _ in generation.choices]
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            texts[piece.choice.index].append(piece.text)
            if piece.token is not None:
                tokens[piece.choice.index].append(piece.token)
    return [
        Answer(choice, "".join(text), sampled)
        for choice, text, sampled in zip(generation.choices, texts, tokens, strict=True)
    ]


async def stream(
    request: web.Request,
    body: SamplingFields,
    generation: Generation,
    head: Json,
    choice_of: Callable[[Piece], Json],
) -> web.StreamResponse:
    """Send a chunk for every token: `head` with that choice, and usage where it was asked for."""
    options = body.stream_options
    with_usage = options is not None and bool(options.include_usage)
    running_usage = options is not None and with_usage and bool(options.continuous_usage_stats)
    events = EventStream(request)
    with suppress(ConnectionResetError):  # the client left: closing the generation aborts its requests
        try:
            async with aclosing(generation.pieces()) as pieces:
                async for piece in pieces:
                    chunk = {**head, "choices": [choice_of(piece)]}
                    if running_usage:
                        chunk["usage"] = _usage_so_far(piece.choice)
                    elif with_usage:
                        chunk["usage"] = None
                    await events.data(msgspec.json.encode(chunk))
            if with_usage:
                await events.data(msgspec.json.encode({**head, "choices": [], "usage": total_usage(generation)}))
            await events.done()
        except ApiError as error:
            if not events.begun:
                raise
            await events.fail(error)
    return events.response


def _usage_so_far(choice: Choice) -> Json:
    return usage(len(choice.prompt), choice.completion_tokens, choice.cached_tokens)
