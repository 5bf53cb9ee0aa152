"""A device that cannot be fooled: it keeps the token written to each slot, and reads every context back through
the block table, so that a block shared, freed or found at the wrong time shows at once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Literal

from engine.beam_search import BeamSearch
from engine.core import EngineCore
from engine.messages import BeamOutput
from engine.plan import PlannedRow, Sampled, ScoredToken, StepPlan, StepResult
from engine.protocol import Control, EngineInfo, FinishReason
from engine.sampling_params import SamplingParams
from engine.transfer.connector import KVConnector

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
    """Runs a plan on slots that hold tokens. `during` is called while rows are on the device.

    Requests in `failing` get no token. `fault` makes all that is done of its kind fail half-way: moves leave garbage
    wherever they were to write, computing leaves its slots half written. There is memory for `most_tokens` at once,
    and for no row with a longer context than `longest`.
    """

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.host: list[list[int | None]] = [[None] * block_size for _ in range(num_host_blocks)]
        self.block_size = block_size
        self.during: Callable[[], None] = lambda: None
        self.plans: list[StepPlan] = []
        self.failing: set[str] = set()
        self.fault: Literal["", "move", "compute"] = ""
        self.most_tokens = self.longest = 1 << 30

    def move(self, plan: StepPlan) -> float:
        self.plans.append(plan)
        if self.fault == "move" and plan.num_moves:
            self._spoil(plan)
            raise RuntimeError("the moves failed")
        self._move(plan)
        return 0.0

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        tokens = sum(row.count for row in rows)
        if tokens > self.most_tokens or any(row.start + row.count > self.longest for row in rows):
            self._write(rows[: len(rows) // 2])
            raise MemoryError(f"no memory for {tokens} tokens")
        if self.fault == "compute":
            self._write(rows[: len(rows) // 2])
            self.during()
            raise RuntimeError("computing failed")
        self._write(rows)
        return self._sample(rows)

    def _write(self, rows: Sequence[PlannedRow]) -> None:
        for row in rows:
            fed = row.request.tokens[row.start : row.start + row.count]
            for slot, token in zip(row.slots(self.block_size), fed, strict=True):
                if slot >= 0:
                    self.slots[slot] = token

    def _sample(self, rows: Sequence[PlannedRow]) -> StepResult:
        self.during()
        sampled: dict[str, Sampled] = {}
        for row in rows:
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
        scored = {row.request_id: tuple(ScoredToken(-float(p), 1) for p in row.scored) for row in rows if row.scored}
        return StepResult(kept, 0.0, 0.0, 0.0, failed, scored)

    def _spoil(self, plan: StepPlan) -> None:
        size = self.block_size
        for _, host in plan.swap_out:
            self.host[host] = [None] * size
        for target in (*(target for _, target in plan.swap_in), *(copy.target for copy in plan.copies)):
            self.slots[target * size : (target + 1) * size] = [None] * size

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
    *,
    partial_hits: bool = True,
    kv_events: bool = False,
    connector: KVConnector | None = None,
    lease_seconds: float = 30.0,
    clock: Clock | None = None,
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
    return EngineCore(
        runner,
        info,
        control or Control(),
        frozenset([EOS]),
        check_invariants=True,
        clock=clock or Clock(),
        partial_hits=partial_hits,
        kv_events=kv_events,
        connector=connector,
        lease_seconds=lease_seconds,
    )


def greedy(max_tokens: int, **settings: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **settings)  # type: ignore[arg-type]
