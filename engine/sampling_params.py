"""How one request wants its tokens chosen: checked once, at the border, then trusted."""

from __future__ import annotations

from typing import Literal

import msgspec

# The most that any request may have; a server's own limits lie within.
MAX_N = 128
MAX_BEAMS = 32
MAX_STOPS = 64
MAX_TOP_LOGPROBS = 20


class BeamParams(msgspec.Struct, frozen=True):
    """Beam search with transformers' meanings: a finished beam scores its log-probability over
    (output length)**length_penalty, its end token counted. `early_stopping` True ends with `width` finished beams,
    False when the best running beam cannot better the worst of them at its present length, "never" at any length.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


class SchedulingParams(msgspec.Struct, frozen=True):
    """How one request is to be queued and cached. A lower `priority` goes first under the policy `priority`.

    `timeout` is in seconds from its arrival. Equal tokens under different salts never share blocks;
    without `prefix_cache` it neither finds blocks nor leaves any to be found.
    """

    priority: int = 0
    timeout: float | None = None
    cache_salt: str | None = None
    prefix_cache: bool = True
    client: str = ""  # whose it is: the policy `fair` gives each client its turn


class SamplingParams(msgspec.Struct, frozen=True):
    """Sampling settings of one request, with vLLM's meanings.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 are off. `seed` None draws every token afresh.
    `logprobs` is how many alternatives to report beside the sampled token (None: no log-probabilities).
    Stop strings are matched by the API process on text; token ids are matched here.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None  # the same for the prompt's tokens; such requests do not read the prefix cache
    beam: BeamParams | None = None  # then temperature is 0, and no token is told before the end
