"""What might be heard of a server, by chance: looks, failures, restarts, KV events, slots, another server."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from servers.kv_events import Batch, Heard, Missed, Restarted, to_builtins
from servers.reading import lines_known
from servers.slots import Slot
from tests.servers.kv_publisher import PrefixCache
from tests.servers.pages import EngineFigures, Kind, page
from tui.sources.items import Failed, Item, KvLink, KvMessage, Scrape, Slots, SourceHead
from tui.sources.source import Source
from tui.sources.view import ServerView

ENDPOINTS = ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558")
BEGIN = 500.0


class Chance:
    """Makes a server's items; `kinds` follow each other as another server is started at its place."""

    def __init__(self, seed: int, source: int = 0, kinds: tuple[Kind, ...] = ("vllm", "sglang"), kv: int = 2) -> None:
        self.chance = random.Random(f"{seed}:{source}")
        self.source, self.kinds = source, kinds
        self.time = BEGIN + source * 0.1
        self.life = 0
        self.engines = [EngineFigures(rank=str(rank)) for rank in range(self.chance.choice((1, 2)))]
        self.caches = {endpoint: PrefixCache(self.chance) for endpoint in ENDPOINTS[:kv]}
        self.sequences = dict.fromkeys(self.caches, 0)

    @property
    def kind(self) -> Kind:
        return self.kinds[self.life % len(self.kinds)]

    def head(self) -> SourceHead:
        name, url = f"server-{self.source}", f"http://127.0.0.1:{8000 + self.source}"
        kind = "vllm" if self.kind == "vllm-v0" else self.kind
        return SourceHead(self.source, name, url, kind, f"0.{self.life}", 1.7e9, time=self.time, every=1.0)

    def items(self, count: int) -> list[Item]:
        """The head, and as many items as are to be heard after it."""
        made: list[Item] = [self.head()]
        while len(made) <= count:
            made.append(self.next())
        return made

    def next(self) -> Item:
        chance = self.chance
        self.time += chance.choice((0.02, 0.3, 1.0, 1.0, 1.0, 4.0))
        if chance.random() < 0.01:
            self.time -= 2.0  # a clock that goes back
        does = chance.random()
        if does < 0.5:
            return self.scrape()
        if does < 0.58:
            phase = chance.choice(("failing", "failing", "locked", "foreign"))
            return Failed(self.source, self.time, phase, f"{phase}: no answer")
        if does < 0.59:
            self.life += 1
            return self.head()
        if does < 0.6:
            return Scrape(self.source, self.time, 0.1, chance.choice(("vllm:num_requests_running{ 1\n", "x 1\n", "")))
        if does < 0.67:
            return Slots(self.source, self.time, tuple(Slot(i, chance.random() < 0.5, task=i) for i in range(3)))
        if not self.caches:
            return self.scrape()
        if does < 0.69:
            return KvLink(self.source, self.time, chance.choice(list(self.caches)), "failing", "no route")
        return self.kv_message()

    def scrape(self) -> Scrape:
        for engine in self.engines:
            engine.serve(self.chance.randint(0, 3))
            engine.running = self.chance.randint(0, 9)
            if self.chance.random() < 0.04:
                engine.restart()
        took = self.chance.choice((0.01, 0.01, 1.5))
        return Scrape(self.source, self.time, took, lines_known(page(self.kind, self.engines)))

    def kv_message(self) -> KvMessage:
        endpoint = self.chance.choice(list(self.caches))
        does = self.chance.random()
        sequence = self.sequences[endpoint]
        message: Heard | Missed | Restarted
        if does < 0.03:
            message = Missed(sequence, sequence + 4)
            self.sequences[endpoint] += 5
        elif does < 0.05:
            message = Restarted()
            self.sequences[endpoint] = 0
        else:
            message = Heard(sequence, Batch(1.7e9 + self.time, self.caches[endpoint].step()))
            self.sequences[endpoint] += 1
        payload = to_builtins(message) if does < 0.98 else {"kind": "new", "of": "a later version"}
        return KvMessage(self.source, self.time, endpoint, payload)


class Clock:
    """Stands where an item was heard last."""

    def __init__(self) -> None:
        self.time = BEGIN

    def __call__(self) -> float:
        return self.time


def fold(items: Iterable[Item], source: int = 0, budget: int = 1 << 30) -> tuple[Source, Clock]:
    """A source that has heard them, whose clock stands where the last one was."""
    clock = Clock()
    made = Source("", "", clock, source, budget)
    for item in items:
        take(made, clock, item)
    return made, clock


def take(source: Source, clock: Clock, item: Item) -> None:
    clock.time = max(clock.time, item.time)
    source.take(item)


def told(view: ServerView) -> dict[str, Any]:
    """All that a picture tells, in values that can be compared."""
    looks = view.looks
    return {
        "server": (view.name, view.url, view.kind, view.version, view.link, view.now, view.seq, view.restarts),
        "slots": view.slots,
        "looks": [(look.time, look.failed, look.took, _numbers(look.reading)) for look in looks._looks],
        "marks": (looks.marks.breaks, dict(looks.marks.layouts)),
        "measures": [repr(view.measure(seconds)) for seconds in (3.0, 60.0)],
        "engines": [repr(view.measure(5.0, engine)) for engine in view.engines],
        "kv": [
            (
                kv.endpoint, kv.heard, kv.phase, kv.detail, kv.since, kv.churned, kv.tree.churn, kv.tree.complete,
                kv.tree.resident, list(kv.tree.runs()),
            )
            for kv in view.kv
        ],
    }  # fmt: skip


def _numbers(reading: Any) -> Any:
    return None if reading is None else (reading.layout, [repr(value) for value in reading.values])
