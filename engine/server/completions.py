"""`POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aiohttp import web

from engine.server.answers import Json, collect, json_response, stream, total_usage
from engine.server.bodies import CompletionBody, parse
from engine.server.chat import LOWEST_LOGPROB
from engine.server.generation import Generation, Piece, SampledToken, TextOptions
from engine.server.service import Service, new_id
from engine.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16


class CompletionRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        client, loaded = service.ready()
        body = parse(await request.read(), CompletionBody)
        model = service.check_model(body.model)
        body.check()
        prompts = [
            await service.encode_prompt(prompt, add_special_tokens=body.add_special_tokens is not False)
            for prompt in body.prompts()
        ]
        max_tokens = service.max_tokens(prompts, "prompt", "max_tokens", body.max_tokens, DEFAULT_MAX_TOKENS)
        generation = Generation(
            client,
            loaded.tokenizer,
            new_id("cmpl"),
            prompts,
            body.sampling(max_tokens, body.alternatives, loaded.vocab_size),
            TextOptions(body.stops, bool(body.include_stop_str_in_output), body.skip_special_tokens is not False),
            body.n or 1,
        )
        head = {"id": generation.id, "object": "text_completion", "created": int(time.time()), "model": model}
        form = CompletionForm(loaded.tokenizer, with_logprobs=body.logprobs is not None)
        if body.stream:
            return await stream(request, body, generation, head, form.chunk_choice)
        choices = [
            {
                "index": answer.choice.index,
                "text": answer.text,
                "logprobs": form.logprobs(answer.tokens),
                "finish_reason": answer.choice.finish_reason,
                "stop_reason": answer.choice.stop_reason,
            }
            for answer in await collect(generation)
        ]
        return json_response({**head, "choices": choices, "usage": total_usage(generation)})


class CompletionForm:
    """Pieces as a completion's chunks."""

    def __init__(self, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self.with_logprobs = with_logprobs

    def chunk_choice(self, piece: Piece) -> Json:
        choice = {
            "index": piece.choice.index,
            "text": piece.text,
            "logprobs": self.logprobs([] if piece.token is None else [piece.token]),
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.choice.stop_reason
        return choice

    def logprobs(self, tokens: Sequence[SampledToken]) -> Json | None:
        if not self.with_logprobs:
            return None
        return {
            "text_offset": [token.offset for token in tokens],
            "tokens": [self._label(token.token_id) for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [
                {
                    self._label(token_id): _finite(logprob)
                    for token_id, logprob in ((token.token_id, token.logprob), *token.top)
                }
                for token in tokens
            ],
        }

    def _label(self, token_id: int) -> str:
        """A token as text; one that is part of a character as its bytes, or keys would fall together."""
        data = self._tokenizer.table[token_id]
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST_LOGPROB)
