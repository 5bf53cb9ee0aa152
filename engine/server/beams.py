"""Beam search: one request in the core for each prompt, which tells the sequences it has at its end."""

from __future__ import annotations

from collections.abc import Sequence

from engine.client import Client
from engine.detokenizer import Detokenizer
from engine.messages import BeamOutput, Output
from engine.protocol import FinishReason
from engine.server.generation import (
    Answer,
    BeamScore,
    Enter,
    News,
    Prompt,
    Wanted,
    add_all,
    check_failure,
    deadline_error,
    make_prompts,
)
from engine.tokenizer import Tokenizer


class BeamSearch:
    """All searches of one HTTP request, one for each prompt."""

    first_token: float | None = None  # none is told before the end

    def __init__(
        self,
        client: Client,
        tokenizer: Tokenizer,
        request: str,
        prompts: Sequence[Sequence[int]],
        wanted: Wanted,
        enter: Enter,
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._wanted = wanted
        self._enter = enter
        self._ends: dict[str, Output] = {}  # the last output of each search that has ended
        self.id = request
        self.prompts = make_prompts(request, prompts, wanted.candidates)
        self.completion_tokens = 0  # of all sequences that the searches ended with, answered or not

    @property
    def finish_reasons(self) -> list[FinishReason]:
        """Each that there is; a search that was not let end was aborted."""
        ends = (self._ends.get(prompt.request) for prompt in self.prompts)
        return sorted({"abort" if end is None or end.finished is None else end.finished for end in ends})

    async def answers(self) -> list[Answer]:
        """Run to the end: the `n` best sequences of each prompt, best first.

        A search that was ended early tells those it had finished, then those it was at.

        Raises:
            ApiError: the queue is full, the core refused a request or failed, or time ran out before any token.
        """
        await self._run()
        ends = self._ends
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

    async def _run(self) -> None:
        prompts = {prompt.request: prompt for prompt in self.prompts}
        ticket = self._enter(dict.fromkeys(prompts, self._wanted.candidates))
        news = News(ticket, lambda: self._client.abort(list(prompts), "abort"))
        try:
            await add_all(self._client, self.prompts, self._wanted, news, self.id)
            while len(self._ends) < len(prompts):
                output = await news.get()
                prompts[output.request].take(output)
                if output.finished is not None:
                    self._ends[output.request] = output
                check_failure(output)
        finally:
            self._client.abort(list(prompts), "abort")
            ticket.close()

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
