"""How one request wants its tokens chosen: checked once, at the border, then trusted."""

from __future__ import annotations

import msgspec


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
