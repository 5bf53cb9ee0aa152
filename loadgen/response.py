"""One answer as it comes, chunk by chunk: what it brought, when, and what the server told of its tokens. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from loadgen.outcome import Outcome


class _Delta(msgspec.Struct, frozen=True, gc=False):
    """What a choice brings: a stream's `delta`, or the `message` of an answer in one piece."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, frozen=True, gc=False):
    index: int = 0
    text: str | None = None  # of /v1/completions
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # of tokens; what else a server claims is no count


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: _Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """The server's own count of tokens; None: it does not say."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Of the prompt's, those found in the prefix cache."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A chunk of a stream, or a whole answer."""

    choices: list[_Choice] | None = None
    usage: Usage | None = None
    timings: object = None  # of llama.cpp; whatever else goes by that name breaks nothing
    error: object = None
    kind: str | None = msgspec.field(name="object", default=None)


@dataclass(slots=True)
class Response:
    """What one request brought so far, filled while it runs so that a failure keeps what came. Times are `clock`'s.

    `sent` is the moment of the first attempt. `chunks` are the moments at which content came; `parts` is the text of
    the first choice. `streamed` is False for an answer in one piece, whose only chunk is its moment.
    """

    sent: float | None = None
    ended: float | None = None
    outcome: Outcome = Outcome.INTERRUPTED
    detail: str = ""
    status: int | None = None
    code: str = ""  # of the server's error
    retries: int = 0
    refusals: int = 0  # after which it was tried again
    waited: float = 0.0  # seconds, for that
    streamed: bool = True
    chunks: list[float] = field(default_factory=list)
    opening: int = 0  # events before the first content
    usage: Usage | None = None
    usage_apart: bool = False  # it came in an event without a choice
    timings: Mapping[str, object] = field(default_factory=dict)  # what llama.cpp tells beside the usage
    parts: list[str] = field(default_factory=list)
    choices: int = 0
    finished: set[int] = field(default_factory=set)  # of the choices, those with a finish_reason
    finish: str = ""  # that of the first choice
    done: bool = False  # the stream said [DONE]

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def input_tokens(self) -> int | None:
        """The prompt's tokens by the server's own count, those found in its prefix cache included."""
        if self.usage is not None and self.usage.prompt_tokens is not None:
            return self.usage.prompt_tokens
        computed = self._timed("prompt_n")
        return None if computed is None else computed + (self._timed("cache_n") or 0)

    @property
    def cached_tokens(self) -> int | None:
        """Of the prompt's, those found in the prefix cache."""
        told = None if self.usage is None else self.usage.cached_tokens
        return self._timed("cache_n") if told is None else told

    @property
    def output_tokens(self) -> int | None:
        """The answer's tokens by the server's own count."""
        told = None if self.usage is None else self.usage.completion_tokens
        return self._timed("predicted_n") if told is None else told

    def _timed(self, name: str) -> int | None:
        count = self.timings.get(name)
        return count if type(count) is int and 0 <= count <= 2**53 else None

    def complete(self, now: float) -> None:
        """It came to its end. Whatever happens to the connection afterwards does not matter."""
        self.outcome, self.ended = Outcome.COMPLETED, now


def take_chunk(chunk: Chunk, response: Response) -> bool:
    """Keep what a chunk brought; returns whether it carries content."""
    if chunk.usage is not None:
        response.usage, response.usage_apart = chunk.usage, not chunk.choices
    if isinstance(chunk.timings, dict):
        response.timings = chunk.timings
    carries = False
    for choice in chunk.choices or ():
        if choice.index >= response.choices:
            response.choices = choice.index + 1
        if choice.finish_reason:  # TGI has an empty one in every chunk
            response.finished.add(choice.index)
            if choice.index == 0:
                response.finish = choice.finish_reason
        delta = choice.delta or choice.message
        text = choice.text if delta is None else delta.content
        if text:
            carries = True
            if choice.index == 0:
                response.parts.append(text)
        elif delta is not None and not carries:
            carries = bool(delta.reasoning or delta.reasoning_content or delta.refusal or delta.tool_calls)
    return carries
