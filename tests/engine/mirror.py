"""A device that cannot be fooled: it keeps the token written to each slot, and reads every context back through
the block table, so that a block shared, freed or found at the wrong time shows at once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from engine.core import EngineCore
from engine.plan import Sampled, StepPlan, StepResult
from engine.protocol import Control, EngineInfo, FinishReason
from engine.sampling_params import SamplingParams

EOS = 31
VOCABULARY = 32


def next_token(context: Sequence[int]) -> int:
    """The mirror's language model: any change of the context changes what comes."""
    return zlib.crc32(bytes(context)) % VOCABULARY


def expected_output(
    prompt: Sequence[int], sampling: SamplingParams, max_model_len: int
) -> tuple[list[int], FinishReason]:
    """What a request must generate whatever runs beside it, and why it ends; written apart from the engine."""
    tokens = list(prompt)
    while True:
        tokens.append(next_token(tokens))
        generated = len(tokens) - len(prompt)
        ends = tokens[-1] in sampling.stop_token_ids or (tokens[-1] == EOS and not sampling.ignore_eos)
        if ends and generated >= sampling.min_tokens:
            return tokens[len(prompt) :], "stop"
        if generated == sampling.max_tokens or len(tokens) == max_model_len:
            return tokens[len(prompt) :], "length"


class MirrorRunner:
    """Runs a plan on slots that hold tokens. `during` is called while a step is on the device.

    Requests in `failing` get no token.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.block_size = block_size
        self.during: Callable[[], None] = lambda: None
        self.plans: list[StepPlan] = []
        self.failing: set[str] = set()

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for row in plan.rows:
            fed = row.request.tokens[row.start : row.start + row.count]
            for slot, token in zip(row.slots(self.block_size), fed, strict=True):
                if slot >= 0:
                    self.slots[slot] = token
        self.during()
        sampled = {}
        for row in plan.rows:
            context = list(row.request.tokens[: row.start + row.count])
            size = self.block_size
            read = [self.slots[row.request.table[p // size] * size + p % size] for p in range(len(context))]
            assert read == context, f"{row.request_id} reads {read} where its context is {context}"
            if row.samples:
                sampled[row.request_id] = Sampled(next_token(context))
        failed = dict.fromkeys(self.failing & sampled.keys(), "no token")
        kept = {request: token for request, token in sampled.items() if request not in failed}
        return StepResult(kept, 0.0, 0.0, 0.0, failed)


class Clock:
    """A clock that moves when it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def mirror_core(
    num_blocks: int = 32, block_size: int = 4, max_model_len: int = 64, control: Control | None = None
) -> EngineCore:
    info = EngineInfo(
        model="mirror",
        dtype="none",
        device="none",
        block_size=block_size,
        num_blocks=num_blocks,
        kv_bytes_per_token=8,
        max_model_len=max_model_len,
        version="0",
    )
    runner = MirrorRunner(num_blocks, block_size)
    return EngineCore(runner, info, control or Control(), frozenset([EOS]), check_invariants=True, clock=Clock())


def greedy(max_tokens: int, **settings: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **settings)  # type: ignore[arg-type]
