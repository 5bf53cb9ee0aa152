"""What routing costs, and what it is good for, without a model: decisions among many engines, the index of their
blocks, the news that keep it, and hit rates and loads in simulated time (`benchmarks.routed_engines`).

`python -m benchmarks.routing [--engines 1000] [--blocks 1000] [--only decisions news memory policies] [--json FILE]`.
Times of decisions are wall clock; the processor's own time is beside, so that it shows what else ran on the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks.routed_engines import BLOCK_SIZE, Load, route
from engine.cluster.block_index import prompt_names
from engine.cluster.loads import Work
from engine.cluster.protocol import Routing
from engine.cluster.router import Router
from engine.framing import decode_from_core, frame
from engine.garbage import look_rarely
from engine.messages import KvNews

PROMPT_TOKENS = 3_000
PROMPT_BLOCKS = PROMPT_TOKENS // BLOCK_SIZE + 1
POPULAR = 20  # prompts that many engines have
DECISIONS = 5_000
UNDER_WAY = 2  # requests at each engine while it is decided
HEADER = 4  # bytes of a frame

Names = tuple[int, ...]
Result = TypeVar("Result")


class Cost(msgspec.Struct, frozen=True):
    """Microseconds of one call: of the clock, and of this process alone."""

    p50: float
    p99: float
    worst: float
    own_p99: float

    @classmethod
    def of(cls, took: list[tuple[float, float]]) -> Cost:
        wall, own = (sorted(one) for one in zip(*took, strict=True))
        late = len(wall) * 99 // 100
        return cls(wall[len(wall) // 2] * 1e6, wall[late] * 1e6, wall[-1] * 1e6, own[late] * 1e6)


def timed(call: Callable[..., Result], *arguments: Any) -> tuple[Result, tuple[float, float]]:
    own, begun = time.thread_time(), time.perf_counter()
    result = call(*arguments)
    return result, (time.perf_counter() - begun, time.thread_time() - own)


class Fleet:
    """A router over engines whose caches are full: of some popular prompts, each to a depth of its own, and of
    conversations that one or two engines have."""

    def __init__(self, engines: int, blocks: int, draw: random.Random) -> None:
        self.router = Router(BLOCK_SIZE)
        self.draw = draw
        self.engines = [f"replica-{number}" for number in range(engines)]
        self.popular = [self.new() for _ in range(min(POPULAR, max(2, engines)))]
        self.sessions = [self.new() for _ in range(max(4, engines * blocks // PROMPT_BLOCKS // 2))]
        for name in self.engines:
            self.router.add_worker(name, "replica")
            self.router.open(name)
            self.router.take(name, KvNews(stored=tuple(self._cache(blocks))))

    def new(self) -> Names:
        """A prompt that nobody has seen."""
        return tuple(self.draw.getrandbits(64) for _ in range(PROMPT_BLOCKS))

    def _cache(self, blocks: int) -> list[int]:
        names: dict[int, None] = {}
        for prompt in self.draw.sample(self.popular, 2):
            names.update(dict.fromkeys(prompt[: self.draw.randint(1, PROMPT_BLOCKS)]))
        while len(names) < blocks:
            session = self.draw.choice(self.sessions)
            names.update(dict.fromkeys(session[: self.draw.randint(PROMPT_BLOCKS // 2, PROMPT_BLOCKS)]))
        return list(names)[:blocks]

    def prompts(self) -> dict[str, Callable[[], Names]]:
        """What is asked for, by what is cached of it."""
        return {
            "new": self.new,
            "popular": lambda: self.draw.choice(self.popular),
            "session": lambda: self.draw.choice(self.sessions),
        }

    def stagger(self) -> Names:
        """A prompt that each engine has to a depth of its own, and the more it has the more it has to do: the most
        there can be to look at."""
        prompt = self.new()
        for place, name in enumerate(self.engines):
            self.router.take(name, KvNews(stored=prompt[: place % PROMPT_BLOCKS]))
            for _ in range(place % PROMPT_BLOCKS // 8):
                self.router.begin(name, PROMPT_TOKENS)
        return prompt


def decide(fleet: Fleet, prompt: Callable[[], Names]) -> tuple[Cost, Cost]:
    """Of `choose`, and of `begin`."""
    router, under_way = fleet.router, list[Work]()
    choices, begins = [], []
    for _ in range(DECISIONS):
        names = prompt()
        choice, took = timed(router.choose, "whole", PROMPT_TOKENS + 1, names)
        choices.append(took)
        if choice is None:
            raise RuntimeError("no engine is open")
        work, took = timed(router.begin, choice.worker, PROMPT_TOKENS + 1, choice.cached_tokens, names)
        begins.append(took)
        under_way.append(work)
        if len(under_way) > UNDER_WAY * len(fleet.engines):
            under_way.pop(0).end()
    for work in under_way:
        work.end()
    return Cost.of(choices), Cost.of(begins)


def decisions(engines: int, blocks: int) -> Iterator[tuple[str, Cost]]:
    for count in sorted({4, 100, engines}):
        fleet = Fleet(count, blocks, random.Random(0))
        look_rarely()  # as the server does
        for name, prompt in fleet.prompts().items():
            choices, begins = decide(fleet, prompt)
            yield f"choose, {name}, {count:,} engines", choices
            yield f"begin, {name}, {count:,} engines", begins
        for routing in ("least_loaded", "round_robin"):
            fleet.router.routing = routing
            yield f"choose, {routing}, {count:,} engines", decide(fleet, fleet.new)[0]
        fleet.router.routing = "prefix"
    staggered = fleet.stagger()
    yield f"choose, staggered, {count:,} engines", decide(fleet, lambda: staggered)[0]
    tokens = [fleet.draw.randrange(50_000) for _ in range(PROMPT_TOKENS)]
    hashing = [timed(prompt_names, tokens, BLOCK_SIZE)[1] for _ in range(1000)]
    yield f"hashing a prompt of {PROMPT_TOKENS:,} tokens", Cost.of(hashing)
    forgetting = [timed(fleet.router.forget, name)[1] for name in fleet.engines[:200]]
    yield f"forgetting an engine of {blocks:,} blocks", Cost.of(forgetting)


def news(batches: int = 2_000, blocks: int = 188, kept: int = 100_000) -> dict[str, float]:
    """Blocks a second that are taken from frames into the index: a prompt stored, the oldest removed, as of an engine
    whose cache is full. And bytes a block."""
    draw = random.Random(0)
    router = Router(BLOCK_SIZE)
    router.add_worker("it", "replica")
    prompts = [tuple(draw.getrandbits(64) for _ in range(blocks)) for _ in range(batches + kept // blocks)]
    for prompt in prompts[: kept // blocks]:
        router.take("it", KvNews(stored=prompt))
    frames = [
        frame(KvNews(stored=stored, removed=removed))
        for removed, stored in zip(prompts, prompts[kept // blocks :], strict=False)
    ]
    begun = time.thread_time()
    decoded = [decode_from_core(one[HEADER:]) for one in frames]
    read = time.thread_time()
    for one in decoded:
        if isinstance(one, KvNews):
            router.take("it", one)
    done = time.thread_time()
    events = 2 * blocks * len(frames)
    return {
        "bytes a block": sum(map(len, frames)) / events,
        "decoded a second": events / (read - begun),
        "applied a second": events / (done - read),
        "together a second": events / (done - begun),
    }


def memory(blocks: int = 100_000) -> dict[str, float]:
    """Bytes a block of an index: with each at one engine of a thousand, and with each at two."""
    found = {}
    for holders in (1, 2):
        draw = random.Random(0)
        router = Router(BLOCK_SIZE)
        for number in range(1000):
            router.add_worker(f"replica-{number}", "replica")
        frames = [frame(KvNews(stored=tuple(draw.getrandbits(64) for _ in range(blocks // 1000)))) for _ in range(1000)]
        tracemalloc.start()
        for step in range(holders):
            for number in range(1000):
                told = decode_from_core(frames[(number + step) % 1000][HEADER:])
                if isinstance(told, KvNews):
                    router.take(f"replica-{number}", told)
        found[f"{holders} of 1,000 engines"] = tracemalloc.get_traced_memory()[0] / blocks
        tracemalloc.stop()
    return found


LOADS = {
    "50 prompts": Load(),
    "as popular as 1/rank": Load(zipf=1.0),
    "2 clients": Load(clients=2),
    "96 clients": Load(clients=96),
    "half in common": Load(shared=256),
    "all fit everywhere": Load(blocks=3000),
    "few fit": Load(blocks=350),
    "1 prompt": Load(prompts=1),
    "16 engines": Load(replicas=16, requests=4000, clients=128, blocks=350),
}
POLICIES: tuple[Routing, ...] = ("prefix", "least_loaded", "round_robin")


def policies() -> Iterator[tuple[str, Routing, Any]]:
    for name, load in LOADS.items():
        for routing in POLICIES:
            yield name, routing, route(load, routing)


def main(argv: Sequence[str] | None = None) -> None:
    parts = ("decisions", "news", "memory", "policies")
    parser = argparse.ArgumentParser(prog="benchmarks.routing", description=__doc__.split("\n")[0])
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--blocks", type=int, default=1000, help="of each engine's cache")
    parser.add_argument("--only", choices=parts, nargs="+", default=parts)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    results: dict[str, Any] = {}
    if "decisions" in arguments.only:
        results["decisions"] = {}
        print(f"{'microseconds':<44}{'p50':>8}{'p99':>8}{'worst':>10}{'own p99':>9}")
        for name, cost in decisions(arguments.engines, arguments.blocks):
            results["decisions"][name] = msgspec.to_builtins(cost)
            print(f"{name:<44}{cost.p50:>8.0f}{cost.p99:>8.0f}{cost.worst:>10.0f}{cost.own_p99:>9.0f}", flush=True)
    for part, measure in (("news", news), ("memory", memory)):
        if part in arguments.only:
            results[part] = measure()
            for name, value in results[part].items():
                print(f"{part}: {name}: {value:,.1f}", flush=True)
    if "policies" in arguments.only:
        results["policies"] = []
        print(f"{'':<36}{'hits':>7}{'sent':>7}{'computed':>10}{'TTFT p50':>10}{'p99':>7}{'bounded':>9}{'names':>9}")
        for name, routing, found in policies():
            results["policies"].append({"load": name, "routing": routing, **msgspec.to_builtins(found)})
            print(
                f"{name + ', ' + routing:<36}{found.hit_rate:>7.1%}{found.sent_imbalance:>7.2f}"
                f"{found.computed_imbalance:>10.2f}{found.ttft_p50:>10.2f}{found.ttft_p99:>7.2f}{found.bounded:>9,}"
                f"{found.names:>9,}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
