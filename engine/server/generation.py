"""From a prompt to pieces of text: requests in the core, their tokens detokenized, stop strings found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

import msgspec

from engine.core_client import CoreClient
from engine.detokenizer import Detokenizer
from engine.messages import Output
from engine.protocol import FinishReason
from engine.sampling_params import SamplingParams
from engine.server.errors import ApiError
from engine.stop_strings import StopStrings
from engine.tokenizer import Tokenizer


class TextOptions(NamedTuple):
    """How tokens become the answer's text."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True


class SampledToken(NamedTuple):
    """A token with its log-probabilities; `offset` is where its text begins in the answer, in characters."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    offset: int


class Piece(NamedTuple):
    """One step's news of one choice. Text and token need not fit: text can be held back."""

    choice: Choice
    text: str
    token: SampledToken | None
    finish_reason: FinishReason | None


class Choice:
    """One answer in the making; its counts are those of the tokens up to its end."""

    def __init__(
        self,
        index: int,
        request: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        tokenizer: Tokenizer,
        options: TextOptions,
    ) -> None:
        self.index = index
        self.request = request
        self.prompt = prompt
        self.sampling = sampling
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._include_stop = options.include_stop
        self._detokenizer = Detokenizer(tokenizer.table, skip_special=options.skip_special)
        self._stops = StopStrings(options.stops, include=options.include_stop)
        self._characters = 0  # detokenized so far

    def take(self, output: Output) -> Piece:
        """Take the core's news. `finish_reason` is set once, by the core's end or a stop string, whichever is first.

        Raises:
            ApiError: the core refused the request (400) or failed (500).
        """
        if output.finished == "error":
            status = 400 if output.refused else 500
            raise ApiError(output.error or "the engine failed on this request", status=status)
        text = ""
        token = None
        if output.token_id is not None:
            self.completion_tokens += 1
            self.cached_tokens = output.cached_tokens
            token = SampledToken(output.token_id, output.logprob, output.top, self._characters)
            if output.stop_token is None or self._include_stop:
                text = self._detokenizer.push(output.token_id)
        if output.finished is not None:
            text += self._detokenizer.flush()
        self._characters += len(text)
        text, matched = self._stops.push(text, armed=self.completion_tokens > self.sampling.min_tokens)
        if matched is not None:
            self.finish_reason, self.stop_reason = "stop", matched
        elif output.finished is not None:
            text += self._stops.flush()
            self.finish_reason = output.finished
            if output.stop_token in self.sampling.stop_token_ids:
                self.stop_reason = output.stop_token
        return Piece(self, text, token, self.finish_reason)


class Generation:
    """All choices of one HTTP request: `n` for each prompt, each a request of its own in the core."""

    def __init__(
        self,
        client: CoreClient,
        tokenizer: Tokenizer,
        request: str,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        options: TextOptions,
        n: int = 1,
    ) -> None:
        self._client = client
        self._n = n
        self.id = request
        self.prompt_tokens = sum(map(len, prompts))
        several = n * len(prompts) > 1
        self.choices = [
            Choice(
                index,
                f"{request}-{index}" if several else request,
                prompts[index // n],
                _sampling_of(sampling, index % n),
                tokenizer,
                options,
            )
            for index in range(n * len(prompts))
        ]

    @property
    def completion_tokens(self) -> int:
        return sum(choice.completion_tokens for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache, by the first choice of each prompt."""
        return sum(choice.cached_tokens for choice in self.choices[:: self._n])

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The news of all choices as it comes, until each has ended. Leaving early aborts those that live.

        Raises:
            ApiError: the core refused a request or failed; the others are aborted.
        """
        news: asyncio.Queue[tuple[Choice, Output]] = asyncio.Queue()
        try:
            for choice in self.choices:
                self._client.add(choice.request, choice.prompt, choice.sampling, _Sink(news, choice))
            live = len(self.choices)
            while live:
                choice, output = await news.get()
                if choice.finish_reason is not None:
                    continue  # a token that was sampled before the core heard of the stop string
                piece = choice.take(output)
                if piece.finish_reason is not None:
                    live -= 1
                    self._client.abort([choice.request], piece.finish_reason)  # if the core does not know yet
                yield piece
        finally:
            self._client.abort([choice.request for choice in self.choices], "abort")


class _Sink:
    """Puts one choice's outputs where its generation waits."""

    def __init__(self, news: asyncio.Queue[tuple[Choice, Output]], choice: Choice) -> None:
        self._news = news
        self._choice = choice

    def __call__(self, output: Output) -> None:
        self._news.put_nowait((self._choice, output))


def _sampling_of(sampling: SamplingParams, child: int) -> SamplingParams:
    """Child `i` of a seeded request has the seed plus `i`, so that equal seeds do not make equal choices."""
    if sampling.seed is None or child == 0:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + child) % 2**63)
