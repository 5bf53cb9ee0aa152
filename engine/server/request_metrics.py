"""What metrics tell of single requests, under vLLM's names: their times and lengths, as histograms."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from prometheus_client import Histogram

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_TIME_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_TIME_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
PREEMPTION_BUCKETS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
TOKEN_COUNT_BUCKETS = tuple(float(1 << i) for i in (0, *range(3, 15)))

Make = Callable[[str, str, tuple[float, ...]], Histogram]  # of a name, what it says, and bounds


class Family(msgspec.Struct):
    """Requests that answer the same prompt: one alone, one and those forked off it, or the beams of a search."""

    live: int = 0
    longest: int = 0  # tokens that the longest answer has of those that have ended


class RequestTimes(msgspec.Struct):
    """When things happened to one live request; None: not yet, or in a record that was lost."""

    arrived: float
    prompt_tokens: int
    max_tokens: int
    family: Family
    found: int = 0  # of its prompt's tokens, in the prefix cache at its first admission, or had from another engine
    received: int = 0  # of these, had from another engine
    shared: int = 0  # of its prompt's tokens, the parent's that it was forked off: neither computed nor looked up
    joined: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    generated: int = 0
    came_with: int = 0  # of these, from another engine: its first token is not of here, and it came when that was there
    preemptions: int = 0

    @property
    def computed(self) -> int:
        """Tokens of its prompt that were computed for it."""
        return max(0, self.prompt_tokens - self.shared - self.found)


class RequestHistograms:
    """Takes what happened to requests, and notes in their times what comes to light with it."""

    def __init__(self, make: Make) -> None:
        self._ttft = make("vllm:time_to_first_token_seconds", "From arrival to the first token", TTFT_BUCKETS)
        self._itl = make("vllm:inter_token_latency_seconds", "Between a request's tokens", TOKEN_TIME_BUCKETS)
        self._tpot = make(
            "vllm:request_time_per_output_token_seconds", "A request's mean time per token", TOKEN_TIME_BUCKETS
        )
        self._e2e = make("vllm:e2e_request_latency_seconds", "From arrival to the end", REQUEST_TIME_BUCKETS)
        self._queue_time = make(
            "vllm:request_queue_time_seconds", "From arrival to the first step", REQUEST_TIME_BUCKETS
        )
        self._prefill_time = make(
            "vllm:request_prefill_time_seconds", "From the first step to the first token", REQUEST_TIME_BUCKETS
        )
        self._decode_time = make(
            "vllm:request_decode_time_seconds", "From the first token to the last", REQUEST_TIME_BUCKETS
        )
        self._inference_time = make(
            "vllm:request_inference_time_seconds", "From the first step to the last token", REQUEST_TIME_BUCKETS
        )
        self._prompt = make("vllm:request_prompt_tokens", "Prompt tokens per request that ended", TOKEN_COUNT_BUCKETS)
        self._generation = make(
            "vllm:request_generation_tokens", "Tokens generated per request that ended", TOKEN_COUNT_BUCKETS
        )
        self._longest = make(
            "vllm:request_max_num_generation_tokens",
            "Tokens of the longest answer of all to a prompt, once all have ended",
            TOKEN_COUNT_BUCKETS,
        )
        self._max_tokens = make(
            "vllm:request_params_max_tokens", "max_tokens of requests that ended", TOKEN_COUNT_BUCKETS
        )
        self._computed = make(
            "vllm:request_prefill_kv_computed_tokens",
            "Prompt tokens computed per request that ended and had a token: found and shared ones are left out",
            TOKEN_COUNT_BUCKETS,
        )
        self._preemptions = make(
            "vllm:request_num_preemptions", "Times that a request that ended lost its blocks", PREEMPTION_BUCKETS
        )

    def joined(self, times: RequestTimes, now: float) -> None:
        """It is in a step for the first time."""
        self._queue_time.observe(now - times.arrived)

    def sampled(self, times: RequestTimes, tokens: int, now: float) -> None:
        """It got tokens."""
        if times.first_token is None:
            times.first_token = now
            self._ttft.observe(now - times.arrived)
            if times.joined is not None:
                self._prefill_time.observe(now - times.joined)
        elif times.last_token is not None:
            self._itl.observe(now - times.last_token)
        times.last_token = now
        times.generated += tokens

    def ended(self, times: RequestTimes, now: float) -> None:
        self._prompt.observe(times.prompt_tokens)
        self._generation.observe(times.generated)
        self._max_tokens.observe(times.max_tokens)
        self._preemptions.observe(times.preemptions)
        family = times.family
        family.live -= 1
        family.longest = max(family.longest, times.generated)
        if not family.live:
            self._longest.observe(family.longest)
        if times.first_token is None:
            return
        self._e2e.observe(now - times.arrived)
        self._computed.observe(times.computed)
        if times.last_token is not None:
            if times.joined is not None:
                self._inference_time.observe(times.last_token - times.joined)
            self._decode_time.observe(times.last_token - times.first_token)
            if (gaps := times.generated - max(1, times.came_with)) > 0:
                self._tpot.observe((times.last_token - times.first_token) / gaps)
