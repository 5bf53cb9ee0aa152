"""How the answers look that handlers put together as dicts: for the OpenAPI document. Whole answers and chunks."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.protocol import Control, FinishReason


class Error(msgspec.Struct):
    """`param` names the field that is to blame, where one is."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None
    request_id: str


class ErrorAnswer(msgspec.Struct):
    error: Error


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptToken(msgspec.Struct):
    """What one token at a place of the prompt was worth; `rank` 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]  # by token id


class Ending(msgspec.Struct, kw_only=True):
    """How a choice came out; score and cumulative log-probability are those of a beam search."""

    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    score: float | msgspec.UnsetType = msgspec.UNSET
    cumulative_logprob: float | msgspec.UnsetType = msgspec.UNSET


class ChatToken(msgspec.Struct):
    token: str
    logprob: float | None
    bytes: list[int]


class ChatTokenWithOthers(ChatToken):
    top_logprobs: list[ChatToken]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatTokenWithOthers]
    refusal: None


class AssistantMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Ending, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, kw_only=True):
    content: str
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(Ending, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None


class ChatChunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class CompletionLogprobs(msgspec.Struct):
    text_offset: list[int]
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Ending, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, kw_only=True):
    """Whole, or a chunk of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ModelCard(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelCards(msgspec.Struct):
    object: Literal["list"]
    data: list[ModelCard]


class Tokens(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(msgspec.Struct):
    prompt: str


class Failure(msgspec.Struct):
    """What an engine died of, and when (Unix time)."""

    reason: str
    unix: float


class Health(msgspec.Struct):
    """`reason` says why it cannot serve, `restarts` how often an engine was started again after one had died."""

    status: Literal["ok", "unavailable"]
    restarts: int
    reason: str | msgspec.UnsetType = msgspec.UNSET
    last_failure: Failure | msgspec.UnsetType = msgspec.UNSET


class Version(msgspec.Struct):
    version: str


class ControlAnswer(Control, frozen=True, kw_only=True):
    """The whole control, and the first step in which it holds."""

    step: int


class Cleared(msgspec.Struct):
    """`step` is the record that tells of it."""

    cleared_blocks: int
    step: int


class Cancelled(msgspec.Struct):
    """The requests that ended, by the ids that records have."""

    cancelled: list[str]
