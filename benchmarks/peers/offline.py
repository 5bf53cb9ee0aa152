"""This engine without HTTP: `build_core`, requests added at once, and steps until all are answered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import cast

import msgspec

from benchmarks.messages import Do, Run, Settings, StepShape
from benchmarks.works import Work
from engine.build import build_core
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.garbage import look_rarely
from engine.protocol import Batching, Control, Record
from engine.sampling_params import SamplingParams


class Offline:
    def __init__(self, settings: Settings) -> None:
        self.core: EngineCore = build_core(engine_config(settings))
        look_rarely()

    def run(self, do: Do, say: Callable[[str], None]) -> Run:
        core, work = self.core, do.work
        core.clear_cache()  # static batching gets the same prompts
        core.set_control(msgspec.structs.replace(core.control, batching=cast(Batching, do.batching)))
        before = core.counters
        tally = Tally()
        first = last = 0.0
        generated = 0
        begun = time.perf_counter()
        add(core, work)
        while core.has_work:
            outputs, record = core.step()
            now = time.perf_counter()
            for output in outputs:
                if output.error is not None:
                    raise RuntimeError(output.error)
                if output.token_id is not None:
                    generated += 1
                    first, last = first or now, now
            if record is not None:
                tally.add(record)
            say(f"{generated:,} of {work.output_tokens:,} tokens")
        seconds = time.perf_counter() - begun
        if generated != work.output_tokens:
            raise RuntimeError(f"the engine made {generated:,} tokens, not {work.output_tokens:,}")
        alone = len(work.prompts) == 1 and generated > 1
        return Run(
            seconds,
            generated,
            token_seconds=(last - first) / (generated - 1) if alone else None,
            prefill_tokens=core.counters.prefill_tokens - before.prefill_tokens,
            distinct_tokens=work.distinct_tokens,
            schedule=tally.schedule,
            durations=dict(tally.durations),
            parts=dict(tally.parts),
        )


class Tally:
    """Sums over step records: which steps there were, and where their time went."""

    def __init__(self) -> None:
        self._shapes: Counter[tuple[int, int]] = Counter()
        self.durations: Counter[str] = Counter()
        self.parts: Counter[str] = Counter()

    def add(self, record: Record) -> None:
        if record.rows:
            self._shapes[step_shape(record)] += 1
        self.durations.update(msgspec.structs.asdict(record.durations))
        if record.parts is not None:
            self.parts.update(msgspec.structs.asdict(record.parts))

    @property
    def schedule(self) -> tuple[StepShape, ...]:
        return tuple(StepShape(*shape, count) for shape, count in sorted(self._shapes.items()))


def step_shape(record: Record) -> tuple[int, int]:
    """The tokens a step computed, and the rows whose logits it needed: one for each that sampled, forks aside."""
    tokens = sum(row.tokens for row in record.rows if row.kind != "fork")
    return tokens, sum(1 for row in record.rows if row.sampled and row.kind != "fork")


def add(core: EngineCore, work: Work) -> None:
    """Queue every request of a work."""
    for i, (prompt, length) in enumerate(zip(work.prompts, work.outputs, strict=True)):
        core.add(f"cmpl-{i}", prompt, SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))


def engine_config(settings: Settings) -> EngineConfig:
    return EngineConfig(
        model=settings.model,
        dtype=settings.dtype,
        quantize=settings.quantize,
        kv_memory=settings.kv_memory,
        control=Control(max_num_seqs=settings.max_num_seqs, max_num_batched_tokens=settings.max_num_batched_tokens),
    )


def make(settings: Settings) -> Offline:
    return Offline(settings)
