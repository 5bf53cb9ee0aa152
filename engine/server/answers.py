"""The parts of an answer that chat and text completions share: starting, streaming, usage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from aiohttp import web

from engine.core_client import CoreClient
from engine.server.beams import BeamSearch
from engine.server.bodies import ChatBody, CompletionBody, SamplingFields
from engine.server.errors import ApiError
from engine.server.events import EventStream
from engine.server.generation import Answer, Choice, Generation, Piece, TextOptions, Wanted
from engine.server.service import Loaded

Json = dict[str, Any]


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def total_usage(generation: Generation | BeamSearch) -> Json:
    """Each prompt counts once, whatever answers it. Of answers the tokens of all candidates count, answered or not;
    of a beam search those of the sequences that it ended with, not those of beams that it gave up."""
    prompts = generation.prompts
    return usage(
        sum(len(prompt.token_ids) for prompt in prompts),
        generation.completion_tokens,
        sum(prompt.cached_tokens for prompt in prompts),
    )


def json_response(body: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def start(
    client: CoreClient,
    loaded: Loaded,
    body: ChatBody | CompletionBody,
    request: str,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
) -> Generation | BeamSearch:
    """What answers a body. Raises ApiError on what only this model and this engine rule out."""
    assert client.in_force is not None, "a ready engine has a control"
    rows = client.in_force.control.max_num_seqs  # siblings are forked in one step, and beams go on together
    if body.candidates > rows:
        name = body.candidates_field
        raise ApiError(f"{name}: must be from 1 to {rows} (max_num_seqs), got {body.candidates}", param=name)
    options = TextOptions(
        body.stops, bool(body.include_stop_str_in_output), body.skip_special_tokens is not False, body.prompt_only
    )
    sampling = body.sampling(max_tokens, loaded.vocab_size)
    wanted = Wanted(sampling, body.scheduling, options, body.n or 1, body.candidates)
    kind = Generation if sampling.beam is None else BeamSearch
    return kind(client, loaded.tokenizer, request, prompts, wanted)


def ending(answer: Answer) -> Json:
    """The fields of a whole choice that say how it came out."""
    fields: Json = {"finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}
    if answer.beam is not None:
        fields |= {"score": answer.beam.score, "cumulative_logprob": answer.beam.logprob}
    return fields


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
    return usage(len(choice.prompt.token_ids), choice.completion_tokens, choice.prompt.cached_tokens)
