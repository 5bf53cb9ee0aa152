"""An engine core over a runner that only counts, on a clock of its own: step streams without a device.

`python tests/tui/simulated.py FILE` writes the recording that the screen's snapshot tests show.
"""

from __future__ import annotations

import gzip
import random
import sys
from collections.abc import Iterator, Sequence

import msgspec

from engine.core import EngineCore
from engine.plan import PlannedRow, Sampled, StepPlan, StepResult
from engine.protocol import Control, Durations, EngineInfo, Record, Snapshot, encode
from engine.request import RequestTooLarge
from engine.sampling_params import SamplingParams

STATIC_RESERVED = Control(batching="static", allocation="reserved")
MOVE_SECONDS = 0.0004  # of one block, copied or swapped
DURATIONS = Durations(0.0004, 0.0009, 0.0486, 0.0012, 0.0006)


class _Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class _Runner:
    def __init__(self, clock: _Clock) -> None:
        self._clock = clock

    def move(self, plan: StepPlan) -> float:
        transfer = MOVE_SECONDS * plan.num_moves
        self._clock.time += 0.05 + 0.0002 * plan.num_tokens + transfer
        return transfer

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        sampled = {draw.request_id: Sampled(7) for row in rows for draw in row.draws}
        return StepResult(sampled, 0.0009, 0.0486, 0.0012)


def simulate(
    steps: int,
    controls: dict[int, Control] | None = None,
    blocks: int = 1456,
    max_model_len: int = 4096,
    rate: float = 2.0,
    system_tokens: int = 1000,
    seed: int = 1,
    aborts: float = 0.0,
    host_blocks: int = 0,
    follow: float = 0.0,
    forked: float = 0.0,
    snapshot_every: int = 0,
    check_invariants: bool = True,
) -> Iterator[Snapshot | Record]:
    """A snapshot, then `steps` records of random chats; `controls` are set before the record of that number.

    `follow` is how many requests go on with a chat that has had its answer, `forked` how many want three answers.
    After every record of so many, `snapshot_every` gives the engine's own snapshot too.
    """
    chance, clock = random.Random(seed), _Clock()
    info = EngineInfo(
        model="smollm2-135m",
        dtype="float32",
        device="cpu",
        block_size=16,
        num_blocks=blocks,
        kv_bytes_per_token=23_040,
        max_model_len=max_model_len,
        version="0.1.0",
        num_host_blocks=host_blocks,
    )
    controls = controls or {}
    core = EngineCore(_Runner(clock), info, controls.get(0, Control()), clock=clock, check_invariants=check_invariants)
    yield _timeless(core.snapshot())
    system = [chance.randrange(1000) for _ in range(system_tokens)]
    chats: dict[str, list[int]] = {}  # under way
    answered: list[list[int]] = []
    arrival, arrived, made = clock.time, 0, 0
    while made < steps:
        while clock.time >= arrival:
            arrived += 1
            arrival += chance.expovariate(rate)
            name = f"chatcmpl-{arrived:04d}"
            goes_on = follow and answered and chance.random() < follow
            before = answered.pop(chance.randrange(len(answered))) if goes_on else system
            prompt = before + [chance.randrange(1000) for _ in range(chance.randrange(20, 300))]
            answer = int(chance.paretovariate(1.2) * 25) % 400 + 8
            siblings = [f"{name}-{i}" for i in (1, 2)] if forked and chance.random() < forked else []
            try:
                core.add(name, prompt, SamplingParams(max_tokens=answer), siblings=siblings)
            except RequestTooLarge:
                continue
            chats[name] = prompt
        if aborts and chance.random() < aborts:
            core.abort(chance.choice([*core.scheduler.requests, "nobody"]))
        if made in controls:
            core.set_control(controls[made])
        outputs, record = core.step()
        for output in outputs:
            if output.request in chats:
                chats[output.request] += [] if output.token_id is None else [output.token_id]
                if output.finished:
                    answered.append(chats.pop(output.request))
        if record is None:
            clock.time = max(clock.time + 0.01, arrival)
            continue
        made += 1
        timeless = DURATIONS if record.rows else Durations(0.0, 0.0, 0.0, 0.0, 0.0)
        durations = msgspec.structs.replace(timeless, transfer=record.durations.transfer)
        yield msgspec.structs.replace(record, durations=durations)
        if snapshot_every and made % snapshot_every == 0:
            yield _timeless(core.snapshot())


def recorded(steps: int = 178) -> Iterator[Snapshot | Record]:
    """The recording: a pool that static batches waste, and that continuous ones share, fill and swap out of."""
    return simulate(
        steps,
        {0: STATIC_RESERVED, 130: Control()},
        blocks=560,
        max_model_len=1920,
        rate=5.0,
        seed=7,
        host_blocks=256,
        follow=0.5,
        forked=0.25,
    )


def _timeless(snapshot: Snapshot) -> Snapshot:
    """Without the wall clock's time, so that every run writes the same."""
    return msgspec.structs.replace(snapshot, engine=msgspec.structs.replace(snapshot.engine, started_unix=0.0))


if __name__ == "__main__":
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as file:
        for item in recorded():
            file.write(encode(item) + b"\n")
