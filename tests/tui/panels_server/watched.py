"""Servers as a watcher would have seen them for a minute: real pages, read and kept as looks. No clock, no network."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from engine.protocol import Record, Snapshot, decode_item
from engine.server.metrics import Metrics
from servers.kv_events import Batch, BlockHash, BlockRemoved, BlockStored, Heard
from servers.kv_tree import Churn, KvTree
from servers.looks import Look, Looks
from servers.reading import read
from servers.slots import Slot
from tests.servers.pages import EngineFigures, Kind, page
from tui.focus import Focus
from tui.sources.view import KvView, Phase, ServerView, SourceLink
from tui.view import Frame, Link, Status

RECORDING = Path(__file__).parent.parent / "recording.jsonl.gz"
BEGIN = 1_000.0  # of the watcher's clock
SLOTS = (
    Slot(0, True, task=7, context=4096, prompt_tokens=1200, cached_tokens=800, decoded=300),
    Slot(1, False, context=4096, held=69),
    Slot(2, True, task=9, context=4096),
)


def grow(engine: EngineFigures, second: int) -> None:
    """A second of a steady load: 2 requests of 100 tokens, of which 60 were cached, with 20 tokens of answer each."""
    engine.serve(2, prompt=100, generated=20, cached=60)
    engine.running, engine.waiting = 4 + second % 3, second % 2
    engine.kv_usage = min(0.9, 0.1 + second / 100)


def looks(
    kind: Kind,
    engines: Sequence[EngineFigures],
    count: int = 61,
    then: Callable[[EngineFigures, int], None] = grow,
) -> Looks:
    """One look a second; the engines grow before each but the first."""
    out = Looks()
    for second in range(count):
        for engine in engines if second else ():
            then(engine, second)
        reading = read(page(kind, engines))
        assert reading is not None
        out.add(Look(BEGIN + second, reading, took=0.012))
    return out


@cache
def _steady(kind: Kind, engines: int, count: int) -> Looks:
    """Looks at a steady load, shared by all who only read them."""
    return looks(kind, [EngineFigures(rank=str(rank), kv_blocks=1000 * (rank + 1)) for rank in range(engines)], count)


def server(
    kind: Kind,
    engines: int = 1,
    count: int = 61,
    phase: Phase = "live",
    later: float = 0.0,
    kv: tuple[KvView, ...] = (),
    slots: tuple[Slot, ...] | None = None,
    restarts: tuple[float, ...] = (),
    detail: str = "",
    made: Looks | None = None,
) -> ServerView:
    """A server after `count` looks; `later` seconds after the last of them."""
    seen = _steady(kind, engines, count) if made is None else made
    newest = seen.newest_reading
    now = (newest.time if newest is not None else BEGIN) + later
    age = now - newest.time if newest is not None else None
    link = SourceLink(phase, detail, age)
    found = newest.reading.kind if newest is not None and newest.reading is not None else kind
    return ServerView(
        f"127.0.0.1:{8000 + len(kind)}",
        f"http://127.0.0.1:{8000 + len(kind)}",
        found,
        "1.2.3",
        link,
        now,
        len(seen),
        seen,
        restarts,
        kv,
        slots,
    )


def ours() -> tuple[ServerView, Snapshot, list[Record]]:
    """Our own engine by its real metrics, over a recording of it; and what its step stream told."""
    with gzip.open(RECORDING, "rb") as file:
        first, *records = [decode_item(line) for line in file]
    assert isinstance(first, Snapshot)
    metrics = Metrics(first.engine, "tiny")
    metrics.resume(first)
    metrics.set_up(True, 0)
    seen = Looks()
    steps = [record for record in records if isinstance(record, Record)]
    for at, record in enumerate(steps):
        metrics.observe(record)
        if at % 8 == 0 or record is steps[-1]:
            seen.add(Look(BEGIN + at / 8, read(metrics.text().decode()), took=0.004))
    return server("paged-engine", made=seen), first, steps


def frame(view: ServerView, focus: Focus | None = None, status: Status | None = None) -> Frame:
    return Frame(status or Status(Link("live"), target=view.url), None, focus or Focus(), server=view)


def stored(hashes: Sequence[BlockHash], parent: BlockHash | None = None, first: int = 0) -> BlockStored:
    """Blocks of 4 tokens, whose ids count up from `first`."""
    return BlockStored(tuple(hashes), parent, tuple(range(first, first + 4 * len(hashes))), 4)


def forest() -> KvTree:
    """Two prompts' beginnings, one of which branches twice; a block whose parent was never told; one that went."""
    tree = KvTree()
    events = (
        stored([1, 2, 3, 4], None, 100),
        stored([5, 6], 4, 200),
        stored([7], 4, 300),
        stored([20, 21], None, 400),
        stored([30], 999, 500),
        stored([40], 21, 600),
        BlockRemoved((40,)),
    )
    for sequence, event in enumerate(events):
        message = Heard(sequence, Batch(50.0 + sequence, (event,)))
        tree.take(message)
        tree.keep_openings(message)
    return tree


def heard(tree: KvTree, endpoint: str = "tcp://127.0.0.1:5557", now: float = BEGIN + 60) -> KvView:
    """The view of a tree that has been listened to for half a minute: 2 blocks a second stored, 1 removed."""
    steps = [(now - 30 + at, Churn(stored=2 * at, removed=at, again=at // 2)) for at in range(31)]
    return KvView(endpoint, tree, 7, "live", since=now - 30, churned=tuple(steps))
