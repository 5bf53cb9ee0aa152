"""`POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache

from aiohttp import web

from engine.detokenizer import Detokenizer
from engine.server.access import client_name
from engine.server.answers import Json, encoded, ending, noted, num_parts, start, stream, total_usage, whole
from engine.server.bodies import CompletionBody, check_total
from engine.server.generation import Answer, Generation, Piece, Prompt, SampledToken
from engine.server.logprobs import finite, label, prompt_logprobs
from engine.server.parsing import parse
from engine.server.service import Service
from engine.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16


class CompletionRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        _, loaded = service.ready()
        body = parse(await service.bodies.read(request), CompletionBody)
        model = service.check_model(body.model)
        body.check(service.settings.limits)
        service.admission.check(client_name(request), body.asked())
        texts = body.prompts()
        prompts: list[list[int]] = []
        total = sum(len(prompt) for prompt in texts if not isinstance(prompt, str))
        check_total(total)
        for prompt in texts:
            prompts.append(await service.encode_prompt(prompt, add_special_tokens=body.add_special_tokens is not False))
            if isinstance(prompt, str):
                total += len(prompts[-1])
                check_total(total)
        max_tokens = service.max_tokens(
            prompts, "prompt", "max_tokens", body.max_tokens, DEFAULT_MAX_TOKENS, echo=bool(body.echo)
        )
        generation = start(service, request, "cmpl", body, prompts, max_tokens)
        head = {"id": generation.id, "object": "text_completion", "created": int(time.time()), "model": model}
        echo = None
        if body.echo:
            echo = Echo(loaded.tokenizer, dict(zip(generation.prompts, texts, strict=True)))
        form = CompletionForm(loaded.tokenizer, body, echo)
        if body.stream:
            assert isinstance(generation, Generation), "a beam search is not streamed"
            return await stream(request, body, generation, head, form.chunk_choice)
        with noted(request, generation):
            answers = await generation.answers()

        def make() -> Json:
            choices = [encoded(form.choice(answer)) for answer in answers]
            return {**head, "choices": choices, "usage": total_usage(generation)}

        echoed = 0 if body.echo else None
        return await whole(
            service, make, num_parts(generation, len(answers), body.logprobs, body.prompt_logprobs, echoed)
        )


class Echo:
    """Prompts as text before their answers: as they were sent, or what their token ids stand for."""

    def __init__(self, tokenizer: Tokenizer, sent: dict[Prompt, str | list[int]]) -> None:
        self._tokenizer = tokenizer
        self._sent = sent
        self.text = cache(self._text)
        self.offsets = cache(self._offsets)

    def _text(self, prompt: Prompt) -> str:
        sent = self._sent[prompt]
        return sent if isinstance(sent, str) else "".join(self._pieces(prompt))

    def _offsets(self, prompt: Prompt) -> list[int]:
        """Where each token begins in the text. What the tokenizer put before it (as `<s>`) begins where it does."""
        offsets, end = [], 0
        for piece in self._pieces(prompt):
            offsets.append(end)
            end += len(piece)
        added = max(0, end - len(self.text(prompt)))
        return [max(0, offset - added) for offset in offsets[: len(prompt.token_ids)]]

    def _pieces(self, prompt: Prompt) -> list[str]:
        """The text of each token, and what is left at the end."""
        detokenizer = Detokenizer(self._tokenizer.table, skip_special=False, continues=False)
        return [*map(detokenizer.push, prompt.token_ids), detokenizer.flush()]


class CompletionForm:
    """Answers as a completion's choices, and pieces as its chunks. An echo comes with a choice's first chunk."""

    def __init__(self, tokenizer: Tokenizer, body: CompletionBody, echo: Echo | None) -> None:
        self._tokenizer = tokenizer
        self._body = body
        self._echo = echo
        self._echoed: set[int] = set()

    def choice(self, answer: Answer) -> Json:
        echoed = self._echo.text(answer.prompt) if self._echo is not None else ""
        choice = {
            "index": answer.index,
            "text": echoed + answer.text,
            "logprobs": self._logprobs(answer.prompt, answer.tokens, echoes=self._echo is not None),
            **ending(answer),
        }
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self._tokenizer, answer.prompt, self._body.prompt_logprobs)
        return choice

    def chunk_choice(self, piece: Piece) -> Json:
        index, prompt = piece.choice.index, piece.choice.prompt
        text = piece.text
        echoes = self._echo is not None and index not in self._echoed
        if self._echo is not None and echoes:
            self._echoed.add(index)
            text = self._echo.text(prompt) + text
        choice = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(prompt, [] if piece.token is None else [piece.token], echoes=echoes),
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.choice.stop_reason
        return choice

    def _logprobs(self, prompt: Prompt, tokens: Sequence[SampledToken], *, echoes: bool) -> Json | None:
        """Of these tokens, and of the prompt's before them where it `echoes`: nothing comes before its first."""
        count = self._body.logprobs
        if count is None:
            return None
        before = 0 if self._echo is None else len(self._echo.text(prompt))
        rows: list[tuple[int, int, float | None, Sequence[tuple[int, float]]]] = []
        if self._echo is not None and echoes:
            offsets = self._echo.offsets(prompt)
            rows.append((offsets[0], prompt.token_ids[0], None, ()))
            rows += [
                (offset, token_id, score.logprob, score.top[:count])
                for offset, token_id, score in zip(offsets[1:], prompt.token_ids[1:], prompt.scores, strict=False)
            ]
        rows += [(before + token.offset, token.token_id, token.logprob, token.top) for token in tokens]
        return {
            "text_offset": [offset for offset, _, _, _ in rows],
            "tokens": [self._label(token_id) for _, token_id, _, _ in rows],
            "token_logprobs": [None if logprob is None else finite(logprob) for _, _, logprob, _ in rows],
            "top_logprobs": [
                None
                if logprob is None
                else {self._label(other): finite(value) for other, value in ((token_id, logprob), *top)}
                for _, token_id, logprob, top in rows
            ],
        }

    def _label(self, token_id: int) -> str:
        return label(self._tokenizer, token_id)
