"""An engine core over a runner that only counts, on a clock of its own: step streams without a device.

`python tests/tui/simulated.py FILE` writes the recording that the screen's snapshot tests show.
"""

from __future__ import annotations

import gzip
import random
import sys
from collections.abc import Iterator

import msgspec

from engine.core import EngineCore
from engine.plan import Sampled, StepPlan, StepResult
from engine.protocol import Control, Durations, EngineInfo, Record, Snapshot, encode
from engine.sampling_params import SamplingParams

STATIC_RESERVED = Control(batching="static", allocation="reserved")
DURATIONS = Durations(0.0004, 0.0009, 0.0486, 0.0012, 0.0006)


class _Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class _Runner:
    def __init__(self, clock: _Clock) -> None:
        self._clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        self._clock.time += 0.05 + 0.0002 * plan.num_tokens
        sampled = {row.request_id: Sampled(7) for row in plan.rows if row.samples}
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
) -> Iterator[Snapshot | Record]:
    """A snapshot, then `steps` records of random chats; `controls` are set before the record of that number."""
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
    )
    controls = controls or {}
    core = EngineCore(_Runner(clock), info, controls.get(0, Control()), clock=clock, check_invariants=True)
    yield _timeless(core.snapshot())
    system = [chance.randrange(1000) for _ in range(system_tokens)]
    arrival, arrived, made = clock.time, 0, 0
    while made < steps:
        while clock.time >= arrival:
            arrived += 1
            arrival += chance.expovariate(rate)
            prompt = system + [chance.randrange(1000) for _ in range(chance.randrange(20, 300))]
            answer = int(chance.paretovariate(1.2) * 25) % 400 + 8
            core.add(f"chatcmpl-{arrived:04d}", prompt, SamplingParams(max_tokens=answer))
        if aborts and chance.random() < aborts:
            core.abort(chance.choice([*core.scheduler.requests, "nobody"]))
        if made in controls:
            core.set_control(controls[made])
        _, record = core.step()
        if record is None:
            clock.time = max(clock.time + 0.01, arrival)
            continue
        made += 1
        durations = DURATIONS if record.rows else record.durations
        yield msgspec.structs.replace(record, durations=durations)


def _timeless(snapshot: Snapshot) -> Snapshot:
    """Without the wall clock's time, so that every run writes the same."""
    return msgspec.structs.replace(snapshot, engine=msgspec.structs.replace(snapshot.engine, started_unix=0.0))


if __name__ == "__main__":
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as file:
        for item in simulate(260, {0: STATIC_RESERVED, 130: Control()}, rate=2.2):
            file.write(encode(item) + b"\n")
