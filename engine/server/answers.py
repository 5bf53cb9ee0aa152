"""The parts of an answer that chat and text completions share: starting, streaming, usage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import msgspec
from aiohttp import web

from engine.server.access import client_name
from engine.server.beams import BeamSearch
from engine.server.bodies import ChatBody, CompletionBody, SamplingFields
from engine.server.errors import ApiError
from engine.server.events import EventStream
from engine.server.generation import Answer, Choice, Generation, Piece, TextOptions, Wanted
from engine.server.request_ids import answer_id
from engine.server.request_log import note
from engine.server.service import LONG_ANSWER, Service

Json = dict[str, Any]
MAX_LOGPROBS = 3 << 20  # told in one whole answer, at some 60 bytes each


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
    service: Service,
    request: web.Request,
    kind: str,
    body: ChatBody | CompletionBody,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
) -> Generation | BeamSearch:
    """What answers a body; its id begins with `kind`. Raises ApiError on what only this model and this engine rule
    out. Nothing is asked of the engine yet."""
    if not body.stream:
        _check_logprobs(body, prompts, max_tokens)
    client, loaded = service.ready()
    assert client.in_force is not None, "a ready engine has a control"
    rows = client.in_force.control.max_num_seqs  # siblings are forked in one step, and beams go on together
    if body.candidates > rows:
        name = body.candidates_field
        raise ApiError(f"{name}: must be from 1 to {rows} (max_num_seqs), got {body.candidates}", param=name)
    options = TextOptions(
        body.stops, bool(body.include_stop_str_in_output), body.skip_special_tokens is not False, body.prompt_only
    )
    sampling = body.sampling(max_tokens, loaded.vocab_size)
    whose = client_name(request)
    scheduling = body.scheduling(whose, service.settings.limits)
    wanted = Wanted(sampling, scheduling, options, body.n or 1, body.candidates)
    name = service.answer_names.unlike(answer_id(kind, request))
    field = body.asked().field
    answering = Generation if sampling.beam is None else BeamSearch
    return answering(
        client, loaded.tokenizer, name, prompts, wanted, lambda places: service.admission.enter(whose, places, field)
    )


def _check_logprobs(body: ChatBody | CompletionBody, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
    """Whether a whole answer, which is held until its end, may tell so many. Raises ApiError."""
    told = 0 if body.alternatives is None else body.alternatives + 1
    told_of_prompts = 0 if body.prompt_logprobs is None else body.prompt_logprobs + 1
    times = 1 if isinstance(body, ChatBody) else body.n or 1  # a chat's prompt is told once, a completion's by each
    count = len(prompts) * body.candidates * max_tokens * told
    count += times * sum(map(len, prompts)) * (told_of_prompts + (told if body.echo else 0))
    if count > MAX_LOGPROBS:
        field = "logprobs" if told else "prompt_logprobs"
        raise ApiError(
            f"{field}: one answer tells at most {MAX_LOGPROBS:,} log-probabilities, alternatives among them, and this "
            f"could have {count:,}; ask for fewer of them, of tokens (max_tokens) or of choices (n)",
            param=field,
        )


def encoded(choice: Json) -> msgspec.Raw:
    """A choice as JSON: with very many log-probabilities it is far smaller than as Python's values."""
    return msgspec.Raw(msgspec.json.encode(choice))


@contextmanager
def noted(request: web.Request, generation: Generation | BeamSearch) -> Iterator[None]:
    """The log's line of a request tells what became of its answer, however that ends."""
    began = time.monotonic()
    try:
        yield
    finally:
        used, first = total_usage(generation), generation.first_token
        note(
            request,
            answer=generation.id,
            prompt_tokens=used["prompt_tokens"],
            output_tokens=used["completion_tokens"],
            cached_tokens=used["prompt_tokens_details"]["cached_tokens"],
            finish=generation.finish_reasons,
        )
        if first is not None:
            note(request, ttft=round(first - began, 6))


async def whole(service: Service, make: Callable[[], Json], parts: int) -> web.Response:
    """An answer as JSON, put together on another thread if it has very many parts: tokens, and alternatives to them."""
    if parts <= LONG_ANSWER:
        return json_response(make())
    body = await service.aside(lambda: msgspec.json.encode(make()))
    return web.Response(body=body, content_type="application/json")


def num_parts(generation: Generation | BeamSearch, choices: int, *alternatives: int | None) -> int:
    """Of an answer with so many choices that tells so many beside each token (None: nothing of that kind)."""
    told = max((count + 1 for count in alternatives if count is not None), default=0)
    used = total_usage(generation)
    return told * int(used["prompt_tokens"] * choices // len(generation.prompts) + used["completion_tokens"])


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
    with suppress(ConnectionResetError), noted(request, generation):
        # If the client leaves, closing the generation aborts its requests.
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
    return events.response


def _usage_so_far(choice: Choice) -> Json:
    return usage(len(choice.prompt.token_ids), choice.completion_tokens, choice.prompt.cached_tokens)
