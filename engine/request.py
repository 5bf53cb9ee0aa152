"""One request, as the scheduler sees it: its tokens, how many of them are computed, and where their KV lies."""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol import Allocation, FinishReason, RequestStatus, RowKind
from engine.sampling_params import SamplingParams


class RequestTooLarge(ValueError):
    """The request could never run on this engine, however long it waited."""


class Request:
    """State is derived from `tokens`, `num_computed` and `table`; `sequence` is the order of arrival."""

    __slots__ = (
        "allocation",
        "arrived",
        "block_hashes",
        "cached",
        "first_token",
        "found",
        "id",
        "num_computed",
        "preemptions",
        "prompt_length",
        "reason",
        "sampling",
        "sequence",
        "skipped",
        "table",
        "tokens",
    )

    def __init__(self, id: str, prompt: Sequence[int], sampling: SamplingParams, arrived: float, sequence: int) -> None:
        if not prompt:
            raise ValueError("a request needs at least one prompt token")
        if sampling.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {sampling.max_tokens}")
        self.id = id
        self.tokens = list(prompt)  # the prompt, then what was generated
        self.prompt_length = len(prompt)
        self.sampling = sampling
        self.arrived = arrived
        self.sequence = sequence
        self.num_computed = 0  # tokens whose KV exists; advances at commit alone
        self.cached = 0  # of those, found in the prefix cache at the latest admission
        self.found = 0  # found at the first: what it finds after a preemption may be its own
        self.table: list[int] = []
        self.block_hashes: list[bytes] = []  # of its full blocks so far, extended when needed
        self.preemptions = 0
        self.skipped = 0  # how often a later request was admitted past it
        self.allocation: Allocation | None = None  # how its blocks were taken; None while it waits
        self.reason: FinishReason | None = None
        self.first_token: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def status(self) -> RequestStatus:
        if self.allocation is None:
            return "waiting"
        return "running" if self.reason is None else "held"

    @property
    def kind(self) -> RowKind:
        """What its next row is: a decode feeds the one token generated last."""
        if self.reason is not None:
            return "held"
        decodes = self.num_uncomputed == 1 and self.num_computed >= self.prompt_length
        return "decode" if decodes else "prefill"

    def append(self, token_id: int, eos_token_ids: frozenset[int], max_model_len: int) -> FinishReason | None:
        """Take a sampled token; returns why the request ends with it, if it does. A stop outranks a length."""
        self.tokens.append(token_id)
        sampling = self.sampling
        if self.num_generated >= sampling.min_tokens:
            if token_id in sampling.stop_token_ids:
                return "stop"
            if token_id in eos_token_ids and not sampling.ignore_eos:
                return "stop"
        if self.num_generated >= sampling.max_tokens or self.num_tokens >= max_model_len:
            return "length"
        return None
