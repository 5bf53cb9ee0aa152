"""Request bodies: what clients may send, checked once here. Every complaint names the field and what is allowed.

Unknown fields are ignored, as vLLM does; fields that would change the answer and are not supported are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from engine.sampling_params import (
    MAX_BEAMS,
    MAX_N,
    MAX_TOP_LOGPROBS,
    BeamParams,
    SamplingParams,
    SchedulingParams,
)
from engine.server.admission import Asked
from engine.server.chat_messages import MAX_WORD, Message, check_variables
from engine.server.errors import ApiError, not_supported
from engine.server.settings import Limits

MAX_STOP_LENGTH = 1024
MAX_STOP_TOKENS = 1024
MAX_BIASES = 1024
MAX_MESSAGES = 4096
MAX_USER_LENGTH = 1024
MAX_MODEL_LENGTH = 4096  # a folder may be the model's name
MAX_PROMPTS = 4096
MAX_CHOICES = 4096  # of one request: n for each prompt
MAX_TOKENS_IN_ALL = 1 << 18  # of all prompts of one request
MAX_BEAM_ENDS = 64  # each makes a step look at as many more candidates as there are beams
MAX_SALT_LENGTH = 1024
MAX_TIMEOUT = 86400.0  # seconds
_WORD_64 = 2**63

Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
TokenCount = Annotated[int, Meta(ge=0, lt=2**31)]
Seed = Annotated[int, Meta(ge=-_WORD_64, le=_WORD_64 - 1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
ChoiceCount = Annotated[int, Meta(ge=1, le=MAX_N)]
ModelName = Annotated[str, Meta(max_length=MAX_MODEL_LENGTH)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: Annotated[str, Meta(max_length=MAX_WORD)]


class SamplingFields(msgspec.Struct, kw_only=True):
    """What chat and text completions share. None is the same as leaving a field out."""

    model: ModelName | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: ChoiceCount | None = None
    best_of: ChoiceCount | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Probability | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None  # smaller ones overflow
    logit_bias: (
        Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)] | None
    ) = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    min_tokens: TokenCount | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    user: Annotated[str, Meta(max_length=MAX_USER_LENGTH)] | None = None
    use_beam_search: bool | None = None
    beam_width: Annotated[int, Meta(ge=1, le=MAX_BEAMS)] | None = None
    length_penalty: Annotated[float, Meta(ge=-10, le=10)] | None = None  # further out, its powers overflow
    early_stopping: bool | Literal["never"] | None = None
    prompt_logprobs: TopLogprobs | None = None
    priority: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_SALT_LENGTH)] | None = None
    prefix_cache: bool | None = None
    # Not supported: anything but null (or what changes nothing) is refused.
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    truncate_prompt_tokens: Any = None

    def check(self, limits: Limits) -> None:
        """Rules between fields, this server's limits, and fields that are not supported. Raises ApiError."""
        if self.stream_options is not None and not self.stream:
            raise ApiError("stream_options: only allowed when stream is true", param="stream_options")
        if self.response_format is not None and self.response_format.type != "text":
            raise not_supported(
                "response_format", f"type {self.response_format.type!r} is not supported; only 'text' is"
            )
        for name in _REFUSED:
            if getattr(self, name) not in (None, False, [], {}, ""):
                raise not_supported(name, "not supported by this server")
        self._check_limits(limits)
        for i, stop in enumerate(self.stops):
            name = "stop" if isinstance(self.stop, str) else f"stop[{i}]"
            if not 1 <= len(stop) <= MAX_STOP_LENGTH:
                raise ApiError(f"{name}: must have 1 to {MAX_STOP_LENGTH} characters, got {len(stop)}", param="stop")
        if self.stream and self.prompt_logprobs is not None:
            raise ApiError("prompt_logprobs: only allowed when stream is false", param="prompt_logprobs")
        if self.use_beam_search:
            self._check_beams()
        else:
            self._check_choices()

    def _check_limits(self, limits: Limits) -> None:
        for name in ("n", "best_of", "beam_width"):
            count = getattr(self, name)
            if count is not None and count > limits.max_n:
                raise ApiError(f"{name}: must be from 1 to {limits.max_n} (--max-n), got {count}", param=name)
        if len(self.stops) > limits.max_stop_strings:
            raise ApiError(
                f"stop: at most {limits.max_stop_strings} strings (--max-stop-strings), got {len(self.stops)}",
                param="stop",
            )
        for name in (self._alternatives_field, "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and count > limits.max_logprobs:
                raise ApiError(
                    f"{name}: must be from 0 to {limits.max_logprobs} (--max-logprobs), got {count}", param=name
                )

    def _check_choices(self) -> None:
        n, best_of = self.n or 1, self.best_of
        if best_of is not None and best_of < n:
            raise ApiError(f"best_of: must be from n ({n}) to {MAX_N}, got {best_of}", param="best_of")
        if best_of is not None and best_of > n and self.stream:
            raise ApiError(
                f"best_of: must be n ({n}) when stream is true, for the best are known at the end; got {best_of}",
                param="best_of",
            )
        for name, neutral in (("beam_width", None), ("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(self, name) not in (None, neutral):
                raise ApiError(f"{name}: only allowed when use_beam_search is true", param=name)

    def _check_beams(self) -> None:
        """A beam search keeps the most probable texts: it takes nothing that would choose otherwise."""
        ends = len(self.stop_token_ids or ())
        if ends > MAX_BEAM_ENDS:
            raise ApiError(
                f"stop_token_ids: at most {MAX_BEAM_ENDS} with use_beam_search, got {ends}", param="stop_token_ids"
            )
        n, width = self.n or 1, self.candidates
        if not n <= width <= MAX_BEAMS:
            name = self.candidates_field
            allowed = f"from n ({n}) to {MAX_BEAMS}" if name != "n" else f"from 1 to {MAX_BEAMS}"
            raise ApiError(f"{name}: must be {allowed} with use_beam_search, got {width}", param=name)
        if self.best_of not in (None, width):
            raise ApiError(
                f"best_of: must be beam_width ({width}) with use_beam_search, got {self.best_of}", param="best_of"
            )
        for name, plain, allowed in _PLAIN_WITH_BEAMS:
            if getattr(self, name) not in (None, *plain):
                raise ApiError(f"{name}: must be {allowed}, or left out, with use_beam_search", param=name)
        for name, count in (("logprobs", self.alternatives), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                raise ApiError(f"{name}: must be left out with use_beam_search", param=name)

    @property
    def candidates(self) -> int:
        """How many texts are made for each prompt, of which the n best are answered; the width of a beam search."""
        return (self.beam_width if self.use_beam_search else None) or self.best_of or self.n or 1

    @property
    def candidates_field(self) -> str:
        """The field that said so."""
        if self.use_beam_search and self.beam_width is not None:
            return "beam_width"
        return "n" if self.best_of in (None, self.n) else "best_of"

    @property
    def beam(self) -> BeamParams | None:
        if not self.use_beam_search:
            return None
        return BeamParams(self.candidates, _or(self.length_penalty, 1.0), self.early_stopping or False)

    @property
    def prompt_only(self) -> bool:
        """Nothing is wanted but the prompt itself, perhaps with its log-probabilities."""
        return False

    def scheduling(self, client: str, limits: Limits) -> SchedulingParams:
        """`client` is whose request it is. It ends in `--request-timeout` at the latest."""
        longest = limits.request_timeout or None
        return SchedulingParams(
            priority=self.priority or 0,
            timeout=longest if self.timeout is None else min(self.timeout, longest or self.timeout),
            cache_salt=self.cache_salt,
            prefix_cache=self.prefix_cache is not False,
            client=client,
        )

    def asked(self) -> Asked:
        """How many requests it makes in the core. Raises ApiError as `check` does."""
        return Asked(self.candidates, self.candidates_field)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def alternatives(self) -> int | None:
        """How many are told beside each token's log-probability; None: no log-probabilities."""
        raise NotImplementedError

    @property
    def _alternatives_field(self) -> str:
        """The field that says so."""
        raise NotImplementedError

    def sampling(self, max_tokens: int, vocab_size: int) -> SamplingParams:
        """Settings of the first choice. Raises ApiError on what only this model rules out."""
        if self.min_tokens is not None and self.min_tokens > max_tokens:
            raise ApiError(
                f"min_tokens: must be at most max_tokens ({max_tokens}), got {self.min_tokens}", param="min_tokens"
            )
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            check_token_ids(ids or (), name, vocab_size)
        ends = len(set(self.stop_token_ids or ()))
        if self.min_tokens and 2 * ends > vocab_size:  # none of them may come before: others must be left
            raise ApiError(
                f"stop_token_ids: at most half of the {vocab_size} tokens with min_tokens, got {ends}",
                param="stop_token_ids",
            )
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if self.use_beam_search else _or(self.temperature, 1.0),
            top_p=_or(self.top_p, 1.0),
            top_k=max(0, self.top_k or 0),
            min_p=self.min_p or 0.0,
            seed=None if self.seed is None else self.seed % _WORD_64,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            logit_bias=self.logit_bias or {},
            stop_token_ids=tuple(self.stop_token_ids or ()),
            min_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            # The best are found by their log-probabilities, told or not.
            logprobs=0 if self.alternatives is None and self._ranks else self.alternatives,
            prompt_logprobs=self.prompt_logprobs,
            beam=self.beam,
        )

    @property
    def _ranks(self) -> bool:
        return not self.use_beam_search and self.candidates > (self.n or 1)


# What a beam search would have to honour and does not: the values that ask for nothing.
_PLAIN_WITH_BEAMS: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("stream", (False,), "false (the best are known at the end)"),
    ("temperature", (0.0, 1.0), "0 or 1"),
    ("top_p", (1.0,), "1"),
    ("top_k", (0, -1), "0 or -1"),
    ("min_p", (0.0,), "0"),
    ("presence_penalty", (0.0,), "0"),
    ("frequency_penalty", (0.0,), "0"),
    ("repetition_penalty", (1.0,), "1"),
    ("logit_bias", ({},), "empty"),
    ("stop", ([],), "empty (stop_token_ids are taken)"),
)
_REFUSED = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "allowed_token_ids",
    "bad_words",
    "truncate_prompt_tokens",
)


class ChatBody(SamplingFields, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None
    continue_final_message: bool | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    echo: bool | None = None  # a field of text completions

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.echo:
            raise not_supported("echo", "must be false, or left out, in a chat; /v1/completions takes true")
        if self.top_logprobs and not self.logprobs:
            raise ApiError("top_logprobs: only allowed when logprobs is true", param="top_logprobs")
        if self.tools or self.functions:
            name = "tools" if self.tools else "functions"
            raise not_supported(name, "tool calls are not supported by this server")
        if self.tool_choice not in (None, "none", "auto"):
            raise not_supported("tool_choice", "only allowed together with tools, which are not supported")
        for name in ("chat_template", "continue_final_message"):
            if getattr(self, name):
                raise not_supported(name, "not supported by this server")
        check_variables(self.chat_template_kwargs)

    @property
    def wanted_tokens(self) -> tuple[str, int | None]:
        """Which field caps the answer, and the cap; None leaves it to the context."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def _alternatives_field(self) -> str:
        return "top_logprobs"


class CompletionBody(SamplingFields, kw_only=True):
    prompt: str | list[str | int | list[TokenId]]
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    suffix: str | None = None

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.suffix:
            raise not_supported("suffix", "not supported by this server")
        self.prompts()
        choices = self.num_prompts * self.candidates
        if choices > MAX_CHOICES:
            name = self.candidates_field
            raise ApiError(
                f"{name}: at most {MAX_CHOICES} texts in all, {name} for each prompt; got {choices}", param=name
            )
        if self.prompt_only and self.use_beam_search:
            raise ApiError("max_tokens: must be at least 1 with use_beam_search", param="max_tokens")

    @property
    def prompt_only(self) -> bool:
        return bool(self.echo) and self.max_tokens == 0

    def sampling(self, max_tokens: int, vocab_size: int) -> SamplingParams:
        sampling = super().sampling(max_tokens, vocab_size)
        if not self.echo:
            return sampling
        told = [count for count in (self.prompt_logprobs, self.logprobs) if count is not None]
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=max(told, default=None))
        if not self.prompt_only:
            return sampling
        # The engine computes a prompt to draw a token: one is drawn, greedily, and dropped.
        return SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=sampling.prompt_logprobs)

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def _alternatives_field(self) -> str:
        return "logprobs"

    def asked(self) -> Asked:
        field = "prompt" if self.num_prompts > self.candidates else self.candidates_field
        return Asked(self.num_prompts * self.candidates, field)

    @property
    def num_prompts(self) -> int:
        return 1 if isinstance(self.prompt, str) or isinstance(self.prompt[0], int) else len(self.prompt)

    def prompts(self) -> list[str | list[int]]:
        """One text, one list of token ids, several texts, or several lists of ids. Raises ApiError on mixtures."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise ApiError("prompt: must not be an empty list", param="prompt")
        kinds = set(map(type, self.prompt))
        if len(kinds) > 1:
            raise ApiError(
                "prompt: must be a string, an array of strings, an array of token ids or an array of such arrays, "
                "not a mixture",
                param="prompt",
            )
        if kinds == {int}:
            return [cast("list[int]", self.prompt)]
        if len(self.prompt) > MAX_PROMPTS:
            raise ApiError(f"prompt: at most {MAX_PROMPTS} prompts, got {len(self.prompt)}", param="prompt")
        return [item for item in self.prompt if not isinstance(item, int)]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Either `prompt` or `messages`."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: ModelName | None = None
    tokens: list[TokenId]


def check_total(tokens: int) -> None:
    """How many tokens all prompts of one request have. Raises ApiError."""
    if tokens > MAX_TOKENS_IN_ALL:
        raise ApiError(
            f"prompt: all prompts of a request may have {MAX_TOKENS_IN_ALL:,} tokens together, and these have more",
            param="prompt",
        )


def check_token_ids(token_ids: Collection[int], param: str, vocab_size: int) -> None:
    """Raises ApiError for ids that no token has."""
    for token_id in (max(token_ids, default=0), min(token_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            raise ApiError(
                f"{param}: token id {token_id} is not in the vocabulary (0 to {vocab_size - 1})", param=param
            )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
