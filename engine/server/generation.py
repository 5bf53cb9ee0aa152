"""From prompts to pieces of text: requests in the core, their tokens detokenized, stop strings found."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from engine.client import Client
from engine.detokenizer import Detokenizer
from engine.messages import Add, Output
from engine.plan import ScoredToken
from engine.protocol import FinishReason
from engine.sampling_params import SamplingParams, SchedulingParams
from engine.server.admission import Ticket
from engine.server.errors import ApiError
from engine.stop_strings import StopStrings
from engine.tokenizer import Tokenizer

ADDED_AT_ONCE = 64  # requests; after so many, others get a turn on the event loop
OUTPUT_BYTES, ALTERNATIVE_BYTES = 300, 120  # that a token takes, and each alternative told beside it
MOST_UNREAD = 32 << 20  # bytes of an answer that wait for their client; a step's outputs are far less
Enter = Callable[[Mapping[str, int]], Ticket]  # into the queue, each request with its number of places


class TextOptions(NamedTuple):
    """How tokens become the answer's text; `prompt_only` drops the one token that was drawn."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    prompt_only: bool = False


class Wanted(NamedTuple):
    """What is wanted of each prompt: `candidates` texts (a search's beams), of which the `n` best are answered."""

    sampling: SamplingParams
    scheduling: SchedulingParams
    options: TextOptions
    n: int
    candidates: int


class Prompt:
    """One prompt, and what the core tells of it: it is computed once, by `request`, whatever answers it."""

    def __init__(self, request: str, siblings: Sequence[str], token_ids: Sequence[int]) -> None:
        self.request = request
        self.siblings = tuple(siblings)
        self.token_ids = array("i", token_ids)  # thousands of prompts may wait: a list has nine times the bytes
        self.cached_tokens = 0
        self.scores: list[ScoredToken] = []  # of the tokens after the first, where they were asked for

    def take(self, output: Output) -> None:
        """Take the core's news of the prompt. Places come in order, but again after a preemption.

        Raises:
            ValueError: places before these never came.
        """
        if output.request == self.request:
            self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        if output.prompt_logprobs:
            had = len(self.scores) + 1 - output.prompt_start
            if had < 0:
                raise ValueError(f"{output.request}: the prompt's log-probabilities have a hole of {-had} places")
            self.scores += output.prompt_logprobs[had:]


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


class BeamScore(NamedTuple):
    """`score` is the log-probability over (output length)**length_penalty."""

    score: float
    logprob: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice, whole. `beam` where it was searched for; None if the search was ended from outside."""

    index: int
    prompt: Prompt
    text: str
    tokens: Sequence[SampledToken]
    finish_reason: FinishReason
    stop_reason: int | str | None
    beam: BeamScore | None = None


class Choice:
    """One answer in the making; its counts are those of the tokens up to its end."""

    def __init__(
        self,
        index: int,
        prompt: Prompt,
        sampling: SamplingParams,
        tokenizer: Tokenizer,
        options: TextOptions,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.completion_tokens = 0
        self.logprob = 0.0  # of its tokens together, where log-probabilities come
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._sampling = sampling
        self._options = options
        self._detokenizer = Detokenizer(tokenizer.table, skip_special=options.skip_special)
        self._stops = StopStrings(options.stops, include=options.include_stop)
        self._characters = 0  # detokenized so far

    @property
    def rank(self) -> tuple[bool, float]:
        """More is better: whole, then the mean log-probability per token; without tokens there is nothing worse."""
        whole = self.finish_reason not in ("abort", "deadline")
        return whole, self.logprob / self.completion_tokens if self.completion_tokens else -math.inf

    def take(self, output: Output) -> Piece:
        """Take the core's news. `finish_reason` is set once, by the core's end or a stop string, whichever is first.

        Raises:
            ApiError: as `check_failure` does.
        """
        if output.finished == "error":
            self.finish_reason = "error"
        check_failure(output)
        if self._options.prompt_only and output.token_id is not None:
            self.finish_reason = "length"
            return Piece(self, "", None, self.finish_reason)
        text = ""
        token = None
        if output.token_id is not None:
            self.completion_tokens += 1
            self.logprob += output.logprob or 0.0
            token = SampledToken(output.token_id, output.logprob, output.top, self._characters)
            if output.stop_token is None or self._options.include_stop:
                text = self._detokenizer.push(output.token_id)
        if output.finished is not None:
            text += self._detokenizer.flush()
        self._characters += len(text)
        text, matched = self._stops.push(text, armed=self.completion_tokens > self._sampling.min_tokens)
        if matched is not None:
            self.finish_reason, self.stop_reason = "stop", matched
        elif output.finished is not None:
            text += self._stops.flush()
            self.finish_reason = output.finished
            if output.stop_token in self._sampling.stop_token_ids:
                self.stop_reason = output.stop_token
        return Piece(self, text, token, self.finish_reason)


class News:
    """What the core tells of one answer's requests, in order; their places in the queue are given back as it comes.

    What waits to be taken is bounded: once it has more than `MOST_UNREAD` bytes, `give_up` is called, and whoever
    takes it is told instead of the rest. Its client reads, but more slowly than the engine generates.
    """

    def __init__(self, ticket: Ticket, give_up: Callable[[], None]) -> None:
        self._ticket = ticket
        self._give_up = give_up
        self._waiting: deque[Output] = deque()
        self._size = 0  # of those, in bytes
        self._came = asyncio.Event()
        self._is_given_up = False
        self.first_token: float | None = None  # when it came, on the machine's monotonic clock

    def put(self, output: Output) -> None:
        if output.token_id is not None:
            if self.first_token is None:
                self.first_token = time.monotonic()
            self._ticket.got_token(output.request)
        if output.finished is not None:
            self._ticket.ended(output.request)
        if self._is_given_up:
            return
        self._waiting.append(output)
        self._size += _size(output)
        if self._size > MOST_UNREAD:
            self._waiting.clear()
            self._is_given_up = True
            self._give_up()
        self._came.set()

    async def get(self) -> Output:
        """Raises ApiError once too much has waited."""
        while not self._waiting and not self._is_given_up:
            self._came.clear()
            await self._came.wait()
        if self._is_given_up:
            raise ApiError(
                f"the answer is read too slowly: more than {MOST_UNREAD >> 20} MiB of it were not read",
                status=408,
                code="read_too_slowly",
            )
        output = self._waiting.popleft()
        self._size -= _size(output)
        return output


def _size(output: Output) -> int:
    return OUTPUT_BYTES + ALTERNATIVE_BYTES * len(output.top)


class Generation:
    """All choices of one HTTP request: for each prompt one request in the core, and siblings that are forked off it."""

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
        self._wanted = wanted
        self._enter = enter
        self.id = request
        self.first_token: float | None = None  # when the first of all came, on the machine's monotonic clock
        self.prompts = make_prompts(request, prompts, wanted.candidates)
        self._choices: dict[str, Choice] = {}
        for prompt in self.prompts:
            for one in (prompt.request, *prompt.siblings):
                self._choices[one] = Choice(len(self._choices), prompt, wanted.sampling, tokenizer, wanted.options)

    @property
    def completion_tokens(self) -> int:
        """Of all candidates, answered or not."""
        return sum(choice.completion_tokens for choice in self._choices.values())

    @property
    def finish_reasons(self) -> list[FinishReason]:
        """Each that there is; a choice that was not let end was aborted."""
        return sorted({choice.finish_reason or "abort" for choice in self._choices.values()})

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The news of all choices as it comes, until each has ended. Leaving early aborts those that live.

        Raises:
            ApiError: the queue is full, the core refused a request or failed (the others are aborted), time ran out
                before any token, or they are taken too slowly.
        """
        ticket = self._enter(dict.fromkeys(self._choices, 1))
        news = News(ticket, self._abort)
        expired: list[Piece] = []  # without a token: told at the end, if others have some
        try:
            await add_all(self._client, self.prompts, self._wanted, news, self.id)
            live = len(self._choices)
            while live:
                output = await news.get()
                choice = self._choices[output.request]
                choice.prompt.take(output)
                if choice.finish_reason is not None:
                    continue  # a token that was sampled before the core heard of the stop string
                if output.token_id is None and output.finished is None:
                    continue  # news of the prompt alone
                piece = choice.take(output)
                if piece.finish_reason is not None:
                    live -= 1
                    self._client.abort([output.request], piece.finish_reason)  # if the core does not know yet
                if piece.finish_reason == "deadline" and not choice.completion_tokens:
                    expired.append(piece)
                else:
                    yield piece
            if expired and not self.completion_tokens:
                raise deadline_error(self._wanted.scheduling)
            for piece in expired:
                yield piece
        finally:
            self._abort()
            ticket.close()
            self.first_token = news.first_token

    def _abort(self) -> None:
        self._client.abort(list(self._choices), "abort")

    async def answers(self) -> list[Answer]:
        """Run to the end. Of more candidates than are wanted, those with the highest mean log-probability are
        answered, best first; any that was cut short comes after all whole ones. Raises ApiError."""
        texts: dict[Choice, list[str]] = {choice: [] for choice in self._choices.values()}
        tokens: dict[Choice, list[SampledToken]] = {choice: [] for choice in texts}
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                texts[piece.choice].append(piece.text)
                if piece.token is not None:
                    tokens[piece.choice].append(piece.token)
        kept: list[Choice] = []
        for prompt in self.prompts:
            choices = [self._choices[one] for one in (prompt.request, *prompt.siblings)]
            if len(choices) > self._wanted.n:
                choices = sorted(choices, key=lambda choice: choice.rank, reverse=True)[: self._wanted.n]
            kept += choices
        answers = []
        for index, choice in enumerate(kept):
            assert choice.finish_reason is not None, "every choice has ended"
            answers.append(
                Answer(
                    index,
                    choice.prompt,
                    "".join(texts[choice]),
                    tokens[choice],
                    choice.finish_reason,
                    choice.stop_reason,
                )
            )
        return answers


def make_prompts(request: str, prompts: Sequence[Sequence[int]], candidates: int) -> list[Prompt]:
    """Prompts with the ids of their requests in the core: `request` if there is one in all, else `request-0` on."""
    several = len(prompts) * candidates > 1
    names = [f"{request}-{i}" if several else request for i in range(len(prompts) * candidates)]
    return [
        Prompt(names[i * candidates], names[i * candidates + 1 : (i + 1) * candidates], token_ids)
        for i, token_ids in enumerate(prompts)
    ]


def request_for(prompt: Prompt, wanted: Wanted) -> Add:
    return Add(prompt.request, tuple(prompt.token_ids), wanted.sampling, wanted.scheduling, prompt.siblings)


async def add_all(client: Client, prompts: Sequence[Prompt], wanted: Wanted, news: News, answer: str) -> None:
    """Start the requests of all prompts. Raises EngineDiedError."""
    for number, prompt in enumerate(prompts, 1):
        client.add(request_for(prompt, wanted), news.put, answer)
        if number % ADDED_AT_ONCE == 0:
            await asyncio.sleep(0)


def check_failure(output: Output) -> None:
    """Raise ApiError if the core refused the request (400), failed on it (500) or died (503)."""
    if output.finished != "error":
        return
    message = output.error or "the engine failed on this request"
    if output.unavailable:
        raise ApiError(message, status=503, code="engine_not_ready", headers={"Retry-After": "1"})
    if not output.refused:
        raise ApiError(message, status=500, code="step_failed")
    raise ApiError(message, param="beam_width" if message.startswith("beam_width") else None, code="request_too_large")


def deadline_error(scheduling: SchedulingParams) -> ApiError:
    return ApiError(
        f"timeout: {scheduling.timeout:g} s passed before there was anything to answer",
        status=504,
        param="timeout",
        code="deadline_exceeded",
    )
