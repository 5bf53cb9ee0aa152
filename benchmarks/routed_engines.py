"""Engines behind the router, without a model and in simulated time: what routing does to hit rates and loads.

Each engine is the engine core over a runner that only counts, with a clock of its own that its steps move; whichever is
furthest behind steps next. Prompts are one of some system prompts and a question of its own, and as many are under way
as there are clients; each sends the next one when it has its answer.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

import msgspec

from engine.cluster.block_index import prompt_names
from engine.cluster.loads import Work
from engine.cluster.protocol import Routing
from engine.cluster.router import Router
from engine.core import EngineCore
from engine.kv_news import kv_news
from engine.messages import KvNews, Output
from engine.protocol import Control, EngineInfo
from engine.sampling_params import SamplingParams
from engine.simulator.runner import CountingRunner, SimulatedClock, StepCost

BLOCK_SIZE = 16
VOCABULARY = 1000
QUESTION = (32, 96)  # tokens, from .. to
ANSWER = (16, 64)


class Load(msgspec.Struct, frozen=True):
    """What is sent. `shared`: tokens that all system prompts begin with; `zipf`: 0 has all asked for alike, with 1 the
    second is asked for half as often as the first. `blocks`: of each engine's pool."""

    replicas: int = 4
    prompts: int = 50
    prompt_tokens: int = 512
    shared: int = 0
    zipf: float = 0.0
    requests: int = 1000
    clients: int = 32
    blocks: int = 700
    seed: int = 0


class Routed(msgspec.Struct, frozen=True):
    """What came of it. Imbalance is the most over the mean of the engines: of prompt tokens sent there, and of tokens
    computed there. TTFT is in simulated seconds. `news` are messages, `names` the blocks in them."""

    hit_rate: float
    sent_imbalance: float
    computed_imbalance: float
    seconds: float
    ttft_p50: float
    ttft_p99: float
    by_prefix: int
    bounded: int
    news: int
    names: int
    news_bytes: int


class _Engine:
    def __init__(self, blocks: int) -> None:
        self.clock = SimulatedClock()
        info = EngineInfo(
            model="none",
            dtype="none",
            device="none",
            block_size=BLOCK_SIZE,
            num_blocks=blocks,
            kv_bytes_per_token=1,
            max_model_len=1 << 14,
            version="0",
            num_host_blocks=0,
        )
        runner = CountingRunner(StepCost(), self.clock, BLOCK_SIZE)
        self.core = EngineCore(runner, info, Control(), clock=self.clock, kv_events=True)
        self.computed = 0

    def step(self) -> tuple[tuple[Output, ...], KvNews | None]:
        outputs, record = self.core.step()
        if record is not None:
            self.computed += sum(row.tokens for row in record.rows)
        return outputs, kv_news(self.core.drain_kv_events())


class _Requests:
    """What the clients send, the same whatever comes of it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        draw = random.Random(load.seed)
        beginning = draw.choices(range(VOCABULARY), k=load.shared)
        own = load.prompt_tokens - load.shared
        systems = [beginning + draw.choices(range(VOCABULARY), k=own) for _ in range(load.prompts)]
        weights = [1 / (place + 1) ** load.zipf for place in range(load.prompts)]
        self.prompts = [
            system + draw.choices(range(VOCABULARY), k=draw.randint(*QUESTION))
            for system in draw.choices(systems, weights, k=load.requests)
        ]
        self.answers = [draw.randint(*ANSWER) for _ in range(load.requests)]


def route(load: Load, routing: Routing) -> Routed:
    """Run it to its end. Raises RuntimeError if the router then takes a worker to have something to do."""
    requests = _Requests(load)
    router = Router(BLOCK_SIZE, routing)
    engines = {f"replica-{number}": _Engine(load.blocks) for number in range(load.replicas)}
    for name in engines:
        router.add_worker(name, "replica")
        router.open(name)
    due = [(0.0, number) for number in range(min(load.clients, load.requests))]
    waiting = iter(range(len(due), load.requests))
    works: dict[str, Work] = {}
    begun: dict[str, float] = {}
    ttft: list[float] = []
    found = news = names_told = news_bytes = 0

    def send(time: float, number: int) -> None:
        prompt = requests.prompts[number]
        names = prompt_names(prompt, BLOCK_SIZE)
        choice = router.choose("whole", len(prompt), names)
        if choice is None:
            raise RuntimeError("no worker is open")
        engine = engines[choice.worker]
        if not engine.core.has_work:
            engine.clock.now = max(engine.clock.now, time)
        sampling = SamplingParams(max_tokens=requests.answers[number], temperature=0.0, ignore_eos=True)
        engine.core.add(str(number), prompt, sampling)
        works[str(number)] = router.begin(choice.worker, len(prompt), choice.cached_tokens, names)
        begun[str(number)] = time

    while True:
        busy = [name for name, engine in engines.items() if engine.core.has_work]
        behind = min(busy, key=lambda name: engines[name].clock.now, default=None)
        if due and (behind is None or due[0][0] <= engines[behind].clock.now):
            send(*heapq.heappop(due))
            continue
        if behind is None:
            break
        engine = engines[behind]
        outputs, told = engine.step()
        for output in outputs:
            work = works[output.request]
            if output.request in begun:
                ttft.append(engine.clock.now - begun.pop(output.request))
                found += output.cached_tokens
                work.computed()
            if output.finished:
                work.end()
                if (number := next(waiting, None)) is not None:
                    heapq.heappush(due, (engine.clock.now, number))
        if told is not None:
            router.take(behind, told)
            news += 1
            names_told += len(told.stored) + len(told.removed)
            news_bytes += len(msgspec.msgpack.encode(told))
    if any(router.load(name) for name in engines):
        raise RuntimeError("a worker has something to do when all requests have ended")
    ttft.sort()
    computed = [engine.computed for engine in engines.values()]
    return Routed(
        hit_rate=found / sum(map(len, requests.prompts)),
        sent_imbalance=router.imbalance or 1.0,
        computed_imbalance=_imbalance(computed),
        seconds=max(engine.clock.now for engine in engines.values()),
        ttft_p50=ttft[len(ttft) // 2],
        ttft_p99=ttft[len(ttft) * 99 // 100],
        by_prefix=router.by_prefix,
        bounded=router.bounded,
        news=news,
        names=names_told,
        news_bytes=news_bytes,
    )


def _imbalance(tokens: Sequence[int]) -> float:
    return max(tokens) * len(tokens) / sum(tokens)
