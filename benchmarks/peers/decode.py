"""This engine without HTTP, for `benchmarks.growth`: the steps in which every request of a work decodes.

The prompts are computed first, each with one token, and are then found in the prefix cache: so that the requests of a
large batch decode together, and the first is not done before the last begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from benchmarks.messages import Do, Run, Settings
from benchmarks.peers.offline import add, engine_config
from engine.build import build_core
from engine.core import EngineCore
from engine.garbage import look_rarely
from engine.protocol import Record


class Decode:
    """`run` gives the seconds of as many such steps as the work has outputs, and the mean of their parts."""

    def __init__(self, settings: Settings) -> None:
        self.core: EngineCore = build_core(engine_config(settings))
        look_rarely()

    def run(self, do: Do, say: Callable[[str], None]) -> Run:
        core, work = self.core, do.work
        batch, wanted = len(work.prompts), work.outputs[0]
        core.clear_cache()
        before = core.counters.prefill_tokens
        add(core, msgspec.structs.replace(work, outputs=(1,) * batch))
        while core.has_work:
            core.step()
            say(f"{core.counters.prefill_tokens - before:,} of {sum(map(len, work.prompts)):,} prompt tokens")
        rest = core.control.max_num_batched_tokens - batch  # of a step, beside those that decode already
        late = -(-core.info.block_size * batch // rest) + 1  # steps until all decode
        add(core, msgspec.structs.replace(work, outputs=(wanted + late,) * batch))
        records: list[Record] = []
        while core.has_work:
            _, record = core.step()
            if record is not None and is_decode(record, batch):
                records.append(record)
        del records[:-wanted]
        if not records:
            raise RuntimeError("there was no step in which all requests decoded")
        seconds = tuple(sum(msgspec.structs.astuple(record.durations)) for record in records)
        parts: Counter[str] = Counter()
        for record in records:
            if record.parts is not None:
                parts.update(msgspec.structs.asdict(record.parts))
        mean = {name: total / len(records) for name, total in parts.items()}
        return Run(sum(seconds), len(records) * batch, steps=seconds, parts=mean)


def is_decode(record: Record, batch: int) -> bool:
    """Whether all of a batch decoded in this step, and nothing else was done."""
    return len(record.rows) == batch and all(row.kind == "decode" for row in record.rows)


def make(settings: Settings) -> Decode:
    return Decode(settings)
