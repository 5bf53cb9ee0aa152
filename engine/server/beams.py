"""Beam search: one request in the core for each prompt, which tells the sequences it has at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.core_client import CoreClient
from engine.detokenizer import Detokenizer
from engine.messages import BeamOutput, Output
from engine.protocol import FinishReason
from engine.server.generation import (
    Answer,
    BeamScore,
    Prompt,
    Wanted,
    check_failure,
    deadline_error,
    make_prompts,
    request_for,
)
from engine.tokenizer import Tokenizer


class BeamSearch:
    """All searches of one HTTP request, one for each prompt."""

    def __init__(
        self, client: CoreClient, tokenizer: Tokenizer, request: str, prompts: Sequence[Sequence[int]], wanted: Wanted
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._wanted = wanted
        self.id = request
        self.prompts = make_prompts(request, prompts, wanted.candidates)
        self.completion_tokens = 0  # of all sequences that the searches ended with, answered or not

    async def answers(self) -> list[Answer]:
        """Run to the end: the `n` best sequences of each prompt, best first.

        A search that was ended early tells those it had finished, then those it was at.

        Raises:
            ApiError: the core refused a request or failed, or time ran out before any token.
        """
        ends = await self._run()
        self.completion_tokens = sum(len(beam.token_ids) for end in ends.values() for beam in end.beams)
        if any(end.finished == "deadline" for end in ends.values()) and not self.completion_tokens:
            raise deadline_error(self._wanted.scheduling)
        answers: list[Answer] = []
        for prompt in self.prompts:
            end = ends[prompt.request]
            assert end.finished is not None, "every search has ended"
            if end.beams:
                for beam in end.beams[: self._wanted.n]:
                    answers.append(self._answer(len(answers), prompt, beam))
            else:
                for _ in range(self._wanted.n):
                    answers.append(_nothing(len(answers), prompt, end.finished))
        return answers

    async def _run(self) -> dict[str, Output]:
        """The last output of each search."""
        news: asyncio.Queue[Output] = asyncio.Queue()
        prompts = {prompt.request: prompt for prompt in self.prompts}
        ends: dict[str, Output] = {}
        try:
            for prompt in self.prompts:
                self._client.add(request_for(prompt, self._wanted), news.put_nowait, self.id)
            while len(ends) < len(prompts):
                output = await news.get()
                check_failure(output)
                prompts[output.request].take(output)
                if output.finished is not None:
                    ends[output.request] = output
        finally:
            self._client.abort(list(prompts), "abort")
        return ends

    def _answer(self, index: int, prompt: Prompt, beam: BeamOutput) -> Answer:
        options = self._wanted.options
        detokenizer = Detokenizer(self._tokenizer.table, skip_special=options.skip_special)
        stopped = beam.stop_token is not None and beam.token_ids[-1:] == (beam.stop_token,)
        shown = beam.token_ids[:-1] if stopped and not options.include_stop else beam.token_ids
        text = "".join([*map(detokenizer.push, shown), detokenizer.flush()])
        stop_reason = beam.stop_token if beam.stop_token in self._wanted.sampling.stop_token_ids else None
        return Answer(index, prompt, text, (), beam.finished, stop_reason, BeamScore(beam.score, beam.logprob))


def _nothing(index: int, prompt: Prompt, reason: FinishReason) -> Answer:
    """The answer of a search that was ended before it had found anything."""
    return Answer(index, prompt, "", (), reason, None)
