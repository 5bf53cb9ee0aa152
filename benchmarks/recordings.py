"""Recordings of a known size for measuring the screen, made by the engine's own core on a clock that is only counted.

Both are kept in a temporary folder under what they were made from, so that the next measurement finds them.
"""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from engine.core import EngineCore
from engine.plan import PlannedRow, Sampled, StepPlan, StepResult
from engine.protocol import PROTOCOL_VERSION, Control, EngineInfo, Record, Snapshot, encode
from engine.sampling_params import SamplingParams
from tui.fold import EngineFold

STEP_SECONDS = 0.05  # 20 records a second
PARTS = (0.0009, 0.046, 0.0012)  # prepare, forward, sample
CHECKED_EVERY = 100  # records: so often a fold of them is compared with the engine's own snapshot
WAITING = 4  # requests that always wait, so that the batch stays full
MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Pool:
    """What a recording shows. Tokens are (least, most); requests that run at the start are somewhere on their way."""

    name: str
    blocks: int
    running: int
    system_tokens: int  # the beginning that all prompts share
    prompt_tokens: tuple[int, int]
    answer_tokens: tuple[int, int]
    budget: int  # tokens in a step
    max_model_len: int


USUAL = Pool("usual", 1_500, 64, 160, (40, 240), (40, 360), 512, 4_096)
MILLION = Pool("million", 1_000_000, 1_000, 512, (8_000, 19_000), (2_000, 6_000), 32_768, 32_768)
POOLS = {pool.name: pool for pool in (USUAL, MILLION)}


class _Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class _Runner:
    """Computes nothing; every step takes as long, and samples the token 7."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock

    def move(self, plan: StepPlan) -> float:
        self._clock.time += STEP_SECONDS
        return 0.0

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        return StepResult({draw.request_id: Sampled(7) for row in rows for draw in row.draws}, *PARTS)


class _Load:
    """Keeps `running` requests and a few that wait in a core."""

    def __init__(self, core: EngineCore, pool: Pool) -> None:
        self._core, self._pool = core, pool
        self._chance = random.Random(pool.name)
        self._system = self._tokens(pool.system_tokens)
        self._made = 0

    def fill(self, starting: bool = False) -> None:
        """Add what lacks; those of the start have the rest of an answer to go."""
        pool, chance = self._pool, self._chance
        while len(self._core.scheduler.requests) < pool.running + WAITING:
            self._made += 1
            answer = chance.randint(*pool.answer_tokens)
            rest = chance.randint(1, answer) if starting else answer
            prompt = self._system + self._tokens(chance.randint(*pool.prompt_tokens) + answer - rest)
            self._core.add(f"chatcmpl-{self._made:06d}", prompt, SamplingParams(max_tokens=rest))

    def _tokens(self, count: int) -> list[int]:
        return self._chance.choices(range(1000), k=count)


def simulate(pool: Pool, seconds: float) -> Iterator[Snapshot | Record]:
    """A snapshot of a full batch, and the records of so many seconds. Raises RuntimeError where a fold differs."""
    clock = _Clock()
    info = EngineInfo(MODEL, "float32", "cpu", 16, pool.blocks, 23_040, pool.max_model_len, "benchmark")
    eager = Control(max_num_seqs=pool.running, max_num_batched_tokens=1 << 20)
    core = EngineCore(_Runner(clock), info, eager, clock=clock)
    load = _Load(core, pool)
    load.fill(starting=True)
    while sum(request.status == "running" for request in core.scheduler.requests.values()) < pool.running:
        core.step()
        load.fill()
    core.set_control(msgspec.structs.replace(eager, max_num_batched_tokens=pool.budget))
    core.step()
    core.flush()
    first = core.snapshot()
    fold = EngineFold.from_snapshot(first)
    yield first
    for number in range(1, int(seconds / STEP_SECONDS) + 1):
        load.fill()
        _, record = core.step()
        if record is None:
            raise RuntimeError("a full batch had nothing to do")
        fold.apply(record)
        yield record
        # Free of news after a step, so that the two are of the same moment. A million blocks are compared once.
        if number % CHECKED_EVERY == 0 and pool.blocks < 100_000:
            _check(fold, core)
    _check(fold, core)


def _check(fold: EngineFold, core: EngineCore) -> None:
    if fold.to_snapshot() != core.snapshot():
        raise RuntimeError(f"a fold of the records differs from the engine after record {core.seq}")


def recording(pool: Pool, seconds: float, say: Callable[[str], None], folder: Path | None = None) -> Path:
    """The file of at least `seconds`; made where it is not there yet. It appears whole or not at all."""
    folder = folder or Path(tempfile.gettempdir()) / f"paged-top-recordings-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made_from = f"{asdict(pool)} {seconds} {PROTOCOL_VERSION} {Path(__file__).read_text()}"
    path = folder / f"{pool.name}-{hashlib.sha256(made_from.encode()).hexdigest()[:12]}.jsonl"
    if path.exists():
        return path
    say(f"making a recording of the {pool.name} pool: {pool.blocks:,} blocks, {pool.running:,} requests")
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            for item in simulate(pool, seconds):
                file.write(encode(item) + b"\n")
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
