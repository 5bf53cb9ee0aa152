"""One request, as the scheduler sees it: its tokens, how many of them are computed, and where their KV lies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.block_hash import extend_hashes, root_hash
from engine.protocol import Allocation, FinishReason, RequestStatus, RowKind
from engine.sampling_params import SamplingParams, SchedulingParams
from engine.transfer.offer import Offer

if TYPE_CHECKING:
    from engine.beam_search import BeamGroup
    from engine.hand_over import Incoming

UNLIMITED = 1 << 62
DEFAULT_SCHEDULING = SchedulingParams()


class RequestTooLarge(ValueError):
    """The request could never run on this engine, however long it waited."""


class ComputedTokens(Sequence[int]):
    """Tokens that are worked out when they are looked at, as a simulation's; a request takes them as they are."""

    __slots__ = ()

    @abstractmethod
    def append(self, token_id: int, /) -> None:
        """The next token; whatever is given, it may be another."""


class Request:
    """State is derived from `tokens`, `num_computed` and `table`; `sequence` is the order of arrival.

    One with a `parent` waits to be forked off it, and is among its `children`, until the parent's prompt is computed.
    """

    __slots__ = (
        "allocation",
        "arrived",
        "awaited",
        "beams",
        "block_hashes",
        "cached",
        "children",
        "ends",
        "first_token",
        "found",
        "hand_over",
        "host_table",
        "id",
        "incoming",
        "lost",
        "num_computed",
        "num_given_hashes",
        "num_swapped",
        "outgoing",
        "parent",
        "preemptions",
        "prompt_length",
        "reason",
        "root",
        "sampling",
        "scheduling",
        "sequence",
        "skipped",
        "table",
        "token_limit",
        "tokens",
        "turn",
    )

    def __init__(
        self,
        id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        arrived: float,
        sequence: int,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        eos_token_ids: frozenset[int] = frozenset(),
        max_model_len: int = UNLIMITED,
        block_hashes: Sequence[bytes] = (),
        generated: Sequence[int] = (),
        hand_over: bool = False,
    ) -> None:
        """`generated` has the tokens of its answer that there are already. With `hand_over` its prompt alone is
        computed here."""
        if not prompt:
            raise ValueError("a request needs at least one prompt token")
        if sampling.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {sampling.max_tokens}")
        self.id = id
        self.prompt_length = len(prompt)
        # The prompt, then what was generated.
        self.tokens: list[int] | ComputedTokens = prompt if isinstance(prompt, ComputedTokens) else list(prompt)
        for token in generated:
            self.tokens.append(token)
        self.sampling = sampling
        self.scheduling = scheduling
        self.arrived = arrived
        self.sequence = sequence
        self.token_limit = min(self.prompt_length + sampling.max_tokens, max_model_len)
        if generated and len(self.tokens) >= self.prompt_length + sampling.max_tokens:
            raise ValueError(f"generated: {len(generated)} tokens are all that max_tokens {sampling.max_tokens} allows")
        self.ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_token_ids)
        self.root = root_hash(scheduling.cache_salt)
        self.num_computed = 0  # tokens whose KV exists on the device; advances at commit alone
        self.num_swapped = 0  # tokens whose KV waits in host memory
        self.cached = 0  # of the computed ones, found in the prefix cache at the latest admission
        self.found = 0  # found at the first: what it finds after a preemption may be its own
        self.table: list[int] = []
        self.host_table: list[int] = []
        self.block_hashes = list(block_hashes)  # of its full blocks so far, extended when needed
        self.num_given_hashes = len(block_hashes)
        self.preemptions = 0
        self.lost = 0  # tokens that had KV when it was preempted by recompute
        self.awaited: bytes | None = None  # the hash of a block that another computes, and that it would find
        self.turn: int | None = None  # in which it, or its parent, was first admitted: the virtual time then
        self.skipped = 0  # how often a later request was admitted past it
        self.allocation: Allocation | None = None  # how its blocks were taken; None while it waits
        self.reason: FinishReason | None = None
        self.first_token: float | None = arrived if generated else None
        self.hand_over = hand_over
        self.incoming: Incoming | None = None  # KV of it that another engine has, until that is here or given up
        self.outgoing: Offer | None = None  # what it has offered, while its blocks are kept for that
        self.parent: Request | None = None
        self.children: list[Request] = []
        self.beams: BeamGroup | None = None

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
        if self.incoming is not None:
            return "receiving"
        if self.outgoing is not None:
            return "sending"
        return "running" if self.reason is None else "held"

    @property
    def kind(self) -> RowKind:
        """What its next row is: a decode feeds the one token generated last."""
        if self.reason is not None:
            return "held"
        decodes = self.num_uncomputed == 1 and self.num_computed >= self.prompt_length
        return "decode" if decodes else "prefill"

    @property
    def num_rows(self) -> int:
        """Of a batch, that it takes with those to be forked off it; they go on elsewhere if it is handed over."""
        return 1 if self.hand_over else 1 + len(self.children)

    @property
    def deadline(self) -> float | None:
        """On the engine's clock."""
        timeout = self.scheduling.timeout
        return None if timeout is None else self.arrived + timeout

    def true_hashes(self, block_size: int) -> list[bytes]:
        """The hashes of its full blocks, computed anew, as far as they were not given with its tokens."""
        return extend_hashes(list(self.block_hashes[: self.num_given_hashes]), self.tokens, block_size, self.root)

    def append(self, token_id: int) -> FinishReason | None:
        """Take a sampled token; returns why the request ends with it, if it does. A stop outranks a length."""
        tokens = self.tokens
        tokens.append(token_id)
        if token_id in self.ends and len(tokens) - self.prompt_length >= self.sampling.min_tokens:
            return "stop"
        return None if len(tokens) < self.token_limit else "length"
