"""A device that cannot be fooled: it keeps the token written to each slot, and reads every context back through
the block table, so that a block shared, freed or found at the wrong time shows at once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from engine.beam_search import BeamSearch
from engine.core import EngineCore
from engine.messages import BeamOutput
from engine.plan import Sampled, ScoredToken, StepPlan, StepResult
from engine.protocol import Control, EngineInfo, FinishReason
from engine.sampling_params import SamplingParams

EOS = 31
VOCABULARY = 32


def next_token(context: Sequence[int], seed: int | None = None) -> int:
    """The mirror's language model: any change of the context, or of the seed, changes what comes."""
    return zlib.crc32(bytes(context), seed or 0) % VOCABULARY


def candidates(context: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """Every token with a log-probability, best first."""
    scores = {token: -1.0 - zlib.crc32(bytes([*context, token])) / 2**31 for token in range(VOCABULARY)}
    return tuple(sorted(scores.items(), key=lambda item: -item[1]))


def expected_beams(prompt: Sequence[int], sampling: SamplingParams, max_model_len: int) -> tuple[BeamOutput, ...]:
    """What a beam search must find; its scores are kept by the engine's own `BeamSearch`, which transformers checks."""
    assert sampling.beam is not None
    ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else {EOS})
    longest = min(sampling.max_tokens, max_model_len - len(prompt))
    search = BeamSearch(sampling.beam, ends, sampling.min_tokens, longest)
    outputs: list[tuple[int, ...]] = [()]
    while not search.done:
        going = search.advance([candidates([*prompt, *output])[: search.candidates] for output in outputs], outputs)
        outputs = [(*outputs[beam.parent], beam.token) for beam in going]
    return tuple(search.finished)


def expected_output(
    prompt: Sequence[int], sampling: SamplingParams, max_model_len: int
) -> tuple[list[int], FinishReason]:
    """What a request must generate whatever runs beside it, and why it ends; written apart from the engine."""
    tokens = list(prompt)
    while True:
        tokens.append(next_token(tokens, sampling.seed))
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

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.host: list[list[int | None]] = [[None] * block_size for _ in range(num_host_blocks)]
        self.block_size = block_size
        self.during: Callable[[], None] = lambda: None
        self.plans: list[StepPlan] = []
        self.failing: set[str] = set()

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self._move(plan)
        for row in plan.rows:
            fed = row.request.tokens[row.start : row.start + row.count]
            for slot, token in zip(row.slots(self.block_size), fed, strict=True):
                if slot >= 0:
                    self.slots[slot] = token
        self.during()
        sampled: dict[str, Sampled] = {}
        for row in plan.rows:
            context = list(row.request.tokens[: row.start + row.count])
            size = self.block_size
            read = [self.slots[row.request.table[p // size] * size + p % size] for p in range(len(context))]
            assert read == context, f"{row.request_id} reads {read} where its context is {context}"
            for draw in row.draws:
                sampling = draw.request.sampling
                top = () if sampling.logprobs is None else candidates(context)[: sampling.logprobs]
                sampled[draw.request_id] = Sampled(next_token(context, sampling.seed), None, top)
        failed = dict.fromkeys(self.failing & sampled.keys(), "no token")
        kept = {request: token for request, token in sampled.items() if request not in failed}
        scored = {
            row.request_id: tuple(ScoredToken(-float(p), 1) for p in row.scored) for row in plan.rows if row.scored
        }
        return StepResult(kept, 0.0, 0.0, 0.0, failed, 0.0, scored)

    def _move(self, plan: StepPlan) -> None:
        """Stage by stage, each reading everything before it writes anything."""
        size = self.block_size
        blocks = {device: self.slots[device * size :][:size] for device, _ in plan.swap_out}
        for device, host in plan.swap_out:
            self.host[host] = blocks[device]
        for host, device in plan.swap_in:
            self.slots[device * size : (device + 1) * size] = self.host[host]
        blocks = {copy.source: self.slots[copy.source * size :][:size] for copy in plan.copies}
        for copy in plan.copies:
            self.slots[copy.target * size : (copy.target + 1) * size] = blocks[copy.source]


class Clock:
    """A clock that moves when it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def mirror_core(
    num_blocks: int = 32,
    block_size: int = 4,
    max_model_len: int = 64,
    control: Control | None = None,
    num_host_blocks: int = 0,
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
        num_host_blocks=num_host_blocks,
    )
    runner = MirrorRunner(num_blocks, block_size, num_host_blocks)
    return EngineCore(runner, info, control or Control(), frozenset([EOS]), check_invariants=True, clock=Clock())


def greedy(max_tokens: int, **settings: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **settings)  # type: ignore[arg-type]
