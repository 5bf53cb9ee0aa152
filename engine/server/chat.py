"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aiohttp import web

from engine.server.access import client_name
from engine.server.answers import Json, encoded, ending, noted, num_parts, start, stream, total_usage, whole
from engine.server.bodies import ChatBody
from engine.server.chat_messages import chat_messages
from engine.server.generation import Answer, Generation, Piece, SampledToken
from engine.server.logprobs import finite, prompt_logprobs
from engine.server.parsing import parse
from engine.server.service import Service
from engine.tokenizer import Tokenizer


class ChatRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        _, loaded = service.ready()
        body = parse(await service.bodies.read(request), ChatBody)
        model = service.check_model(body.model)
        body.check(service.settings.limits)
        service.admission.check(client_name(request), body.asked())
        prompt = await service.encode_chat(
            chat_messages(body.messages),
            add_generation_prompt=body.add_generation_prompt is not False,
            add_special_tokens=bool(body.add_special_tokens),
            variables=body.chat_template_kwargs,
        )
        param, wanted = body.wanted_tokens
        max_tokens = service.max_tokens([prompt], "messages", param, wanted, default=None)
        generation = start(service, request, "chatcmpl", body, [prompt], max_tokens)
        head = {"id": generation.id, "created": int(time.time()), "model": model}
        form = ChatForm(loaded.tokenizer, with_logprobs=body.logprobs is True)
        if body.stream:
            assert isinstance(generation, Generation), "a beam search is not streamed"
            return await stream(
                request, body, generation, {**head, "object": "chat.completion.chunk"}, form.chunk_choice
            )
        with noted(request, generation):
            answers = await generation.answers()

        def make() -> Json:
            choices = [encoded(form.choice(answer)) for answer in answers]
            answer = {**head, "object": "chat.completion", "choices": choices, "usage": total_usage(generation)}
            if body.prompt_logprobs is not None:
                prompt = generation.prompts[0]
                answer["prompt_logprobs"] = prompt_logprobs(loaded.tokenizer, prompt, body.prompt_logprobs)
            return answer

        return await whole(service, make, num_parts(generation, len(answers), body.alternatives, body.prompt_logprobs))


class ChatForm:
    """Answers as a chat's choices, and pieces as its chunks. The role comes with a choice's first chunk."""

    def __init__(self, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self.with_logprobs = with_logprobs
        self._greeted: set[int] = set()

    def choice(self, answer: Answer) -> Json:
        return {
            "index": answer.index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self.logprobs(answer.tokens),
            **ending(answer),
        }

    def chunk_choice(self, piece: Piece) -> Json:
        delta: Json = {"content": piece.text}
        index = piece.choice.index
        if index not in self._greeted:
            self._greeted.add(index)
            delta = {"role": "assistant", **delta}
        choice = {
            "index": index,
            "delta": delta,
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
            "content": [
                {
                    **self._token(token.token_id, token.logprob),
                    "top_logprobs": [self._token(token_id, logprob) for token_id, logprob in token.top],
                }
                for token in tokens
            ],
            "refusal": None,
        }

    def _token(self, token_id: int, logprob: float | None) -> Json:
        return {
            "token": self._tokenizer.token_text(token_id),
            "logprob": None if logprob is None else finite(logprob),
            "bytes": list(self._tokenizer.table[token_id]),
        }
