"""How much memory the screen's state takes over a long feed, and how long a record does.

`python -m benchmarks.screen_memory [--records 1000000] [--running 16] [--json FILE]`. The records are those of an
engine core over a runner that only counts: requests join, decode and leave, some share a prompt. Once the core is
empty again its records are played anew, under later numbers, times and names, so that a million cost little to make.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.bookkeeping import CountingRunner
from engine.core import EngineCore
from engine.protocol import Control, EngineInfo, Gap, Record, SharingLedger, Snapshot
from engine.sampling_params import SamplingParams
from tui.engine_api import Unreachable
from tui.feed import Feed
from tui.view import View

TEMPLATE = 2_000  # records of the core, before it is emptied
STEP_SECONDS = 0.001
INFO = EngineInfo("none", "none", "none", 16, 1_500, 23_040, 8192, "0")


class Cost(msgspec.Struct, frozen=True):
    """Of one feed; bytes are of the whole process."""

    records: int
    rows: int
    seconds: float
    peak_bytes: int
    tape_bytes: int
    tape_records: int
    points: int
    steps: int


def template(records: int, running: int) -> tuple[Snapshot, list[Record]]:
    """A snapshot of an empty engine, and records after which it is empty again."""
    chance = random.Random(1)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += STEP_SECONDS / 50  # it is read many times in a step
        return now

    core = EngineCore(CountingRunner(), INFO, Control(max_num_seqs=running), clock=clock)
    first, names = core.snapshot(), 0
    made: list[Record] = []
    system = [chance.randrange(1000) for _ in range(200)]
    while len(made) < records or core.scheduler.requests:
        while len(made) < records and len(core.scheduler.requests) < running + 2:
            names += 1
            prompt = (system if chance.random() < 0.7 else []) + [
                chance.randrange(1000) for _ in range(chance.randrange(20, 200))
            ]
            core.add(f"chatcmpl-{names}", prompt, SamplingParams(max_tokens=chance.randrange(8, 200)))
        now += STEP_SECONDS
        _, record = core.step()
        if record is not None:
            made.append(record)
    core.clear_cache()
    last = core.flush()
    assert last is not None
    assert last.pool.free == INFO.num_blocks
    return first, [*made, last]


def played(records: Sequence[Record], count: int) -> Iterator[Record]:
    """The first `count` of them played over and over, each time as other requests and later."""
    length, span = len(records), records[-1].time + STEP_SECONDS
    total = msgspec.structs.asdict(records[-1].sharing)
    change = msgspec.structs.replace
    now = ("logical_blocks", "physical_blocks", "saved_blocks", "saved_bytes")
    for at in range(count):
        turn, index = divmod(at, length)
        record, later = records[index], f"-{turn}"
        ledger = msgspec.structs.asdict(record.sharing)
        sharing = {name: value if name in now else value + turn * total[name] for name, value in ledger.items()}
        yield change(
            record,
            seq=at + 1,
            time=record.time + turn * span,
            sharing=SharingLedger(**sharing),
            rows=tuple([change(row, request=row.request + later) for row in record.rows]),
            arrived=tuple(
                change(new, request=new.request + later, time=new.time + turn * span) for new in record.arrived
            ),
            joined=tuple(change(joined, request=joined.request + later) for joined in record.joined),
            preempted=tuple(change(lost, request=lost.request + later) for lost in record.preempted),
            left=tuple(change(left, request=left.request + later) for left in record.left),
            tables=tuple(change(table, request=table.request + later) for table in record.tables),
            copies=tuple(change(copy, request=copy.request + later) for copy in record.copies),
        )


class Player:
    """An engine that plays some records and closes the stream; `over` is set then."""

    def __init__(self, first: Snapshot, records: Iterator[Record]) -> None:
        self._first = first
        self._records = records
        self.over = asyncio.Event()

    async def snapshot(self) -> Snapshot:
        return self._first

    async def steps(self, first: int) -> AsyncIterator[Record | Gap]:
        for record in self._records:
            yield record
        self.over.set()
        await asyncio.Event().wait()

    async def change(self, changes: dict[str, object]) -> object:
        raise Unreachable("a player takes no changes")

    async def close(self) -> None:
        pass


async def feed_all(records: int, running: int) -> tuple[Feed, View | None]:
    """A feed that has taken them all, and its view."""
    first, made = template(min(TEMPLATE, records), running)
    player = Player(first, played(made, records))
    feed = Feed(player, time.monotonic)  # type: ignore[arg-type]
    following = asyncio.create_task(feed.run())
    over = asyncio.create_task(player.over.wait())
    await asyncio.wait({following, over}, return_when=asyncio.FIRST_COMPLETED)
    following.cancel()
    if feed.records != records:
        raise RuntimeError(f"{feed.records} of {records} records were taken: {feed.link.detail}")
    return feed, feed.view()


def measure(records: int, running: int) -> Cost:
    began = time.perf_counter()
    feed, view = asyncio.run(feed_all(records, running))
    assert view is not None
    return Cost(
        records=records,
        rows=view.counters.decode_tokens + view.counters.prefill_tokens,
        seconds=time.perf_counter() - began,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        tape_bytes=feed.tape.bytes,
        tape_records=feed.tape.last - feed.tape.first,
        points=feed.history.points,
        steps=len(feed.history.steps),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.screen_memory", description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--running", type=int, default=16, help="requests in the batch")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    cost = measure(arguments.records, arguments.running)
    print(f"{cost.records:,} records of {arguments.running} running requests: peak {cost.peak_bytes / 2**20:,.0f} MiB")
    print(f"{cost.seconds:,.0f} s, {cost.records / cost.seconds:,.0f} records/s with their making")
    print(
        f"kept: {cost.tape_records:,} records in {cost.tape_bytes / 2**20:,.1f} MiB, {cost.points:,} points,"
        f" {cost.steps:,} steps"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(msgspec.structs.asdict(cost), indent=2) + "\n")


if __name__ == "__main__":
    main()
