"""Our engine as others see it: what it publishes for vLLM's readers says what its own stream and its own cache say.

A real engine of `tiny` under real requests, some of which leave early, with a cache that is too small for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import httpx
import msgspec
import pytest

from engine.core import EngineCore
from engine.kv_events import KvBatch, event_hash
from engine.protocol import Control, Record, Snapshot, decode_item, decode_snapshot
from engine.sampling_params import BeamParams, SamplingParams, SchedulingParams
from servers.kv_events import Heard, decode
from servers.kv_subscriber import subscribe
from servers.kv_tree import KvTree
from servers.measures import measure
from servers.reading import Reading, read
from tests.engine.mirror import mirror_core
from tests.engine.server.conftest import Server, start
from tests.engine.server.test_restarts import core_of
from tui.fold import EngineFold

ANY = "tcp://127.0.0.1:0"
PUBLISHED = re.compile(r"KV events are published at (\S+), and told again at (\S+)")
OPTIONS = (
    *("--model", "tiny", "--dtype", "float32", "--kv-memory", "512KiB", "--max-num-seqs", "6"),
    *("--kv-events", ANY, "--kv-events-replay", ANY),
)
PATIENCE = 30.0  # seconds, for what comes in milliseconds


# What the tree of events holds, against the core's own cache, after every step.


@pytest.mark.parametrize(
    "control",
    [
        Control(),
        Control(batching="static"),
        Control(allocation="reserved"),
        Control(prefix_cache=False),
        Control(preempt="swap", max_num_seqs=32),
        Control(max_num_batched_tokens=5),
    ],
    ids=["plain", "static", "reserved", "off", "swap", "chunks"],
)
@pytest.mark.parametrize("partial_hits", [True, False], ids=["parts", "whole"])
def test_a_tree_is_the_cores_cache_after_every_step(control: Control, partial_hits: bool) -> None:
    core = mirror_core(
        num_blocks=24,
        max_model_len=48,
        control=control,
        num_host_blocks=100,
        kv_events=True,
        partial_hits=partial_hits,
    )
    tree, rng = KvTree(), random.Random(7)
    batches = 0

    def step() -> None:
        nonlocal batches
        core.step()
        if events := core.drain_kv_events():
            tree.take(Heard(batches, decode(msgspec.msgpack.encode(KvBatch(float(batches), events)))))
            batches += 1
        assert set(tree.hashes()) == set(map(event_hash, core.pool.cache.by_hash))

    for number in range(60):
        ask(core, rng, f"r{number}")
        for _ in range(rng.randrange(6)):
            step()
        if number % 15 == 14:
            core.clear_cache()
            step()
    while core.has_work:
        step()
    churn = tree.churn
    assert churn.unknown_removals == 0
    assert churn.cleared == 4
    if control.prefix_cache and control.allocation == "paged":
        assert tree.complete
        assert churn.stored > 100
        assert churn.removed > 50
        assert churn.again > 0


def ask(core: EngineCore, rng: random.Random, name: str) -> None:
    """A request of any kind: its beginning shared, salted, forked, a beam search, scored. Now and then one leaves."""
    prompt = [*range(rng.randrange(20)), *(rng.randrange(30) for _ in range(rng.randrange(1, 8)))]
    kind = rng.choice(["one", "one", "forks", "beams", "scored"])
    sampling = SamplingParams(
        max_tokens=rng.randrange(1, 16),
        temperature=0.0,
        ignore_eos=True,
        prompt_logprobs=0 if kind == "scored" else None,
        beam=BeamParams(width=2) if kind == "beams" else None,
    )
    siblings = [f"{name}.{index}" for index in range({"forks": 2, "beams": 1}.get(kind, 0))]
    salt = rng.choice([None, None, "a"])
    core.add(name, prompt, sampling, SchedulingParams(cache_salt=salt), siblings)
    if rng.random() < 0.2:
        core.abort(rng.choice(list(core.scheduler.requests)))


# The engine's process.


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start(tmp_path_factory.mktemp("engine"), *OPTIONS)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=PATIENCE)


async def load(http: httpx.AsyncClient, requests: int, seed: int, longest: int = 40) -> None:
    """That many requests, ten at a time, which begin alike; a fifth of the clients leave before the end."""
    rng, places = random.Random(seed), asyncio.Semaphore(10)

    async def one(body: dict[str, object], leaves: bool) -> None:
        async with places:
            with contextlib.suppress(httpx.TransportError):
                if not leaves:
                    await http.post("/v1/completions", json=body)
                    return
                async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                    async for _ in answer.aiter_lines():
                        return

    bodies: list[dict[str, object]] = [
        {
            "prompt": [65 + rng.randrange(2)] * rng.randrange(1, 90) + [70 + rng.randrange(20) for _ in range(9)],
            "max_tokens": rng.randrange(2, longest),
            "ignore_eos": True,
            "n": rng.choice([1, 1, 1, 2]),
            **rng.choice([{}, {}, {"cache_salt": "x"}]),
        }
        for _ in range(requests)
    ]
    await asyncio.gather(*(one(body, rng.random() < 0.2) for body in bodies))


async def until(holds: Callable[[], bool]) -> None:
    """Raises AssertionError if it never does."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.01)


async def snapshot(http: httpx.AsyncClient) -> Snapshot:
    return decode_snapshot((await http.get("/engine/snapshot")).raise_for_status().content)


async def idle(http: httpx.AsyncClient) -> Snapshot:
    """The engine's state once nothing runs or waits: those who left may still be there for a step."""
    end = time.monotonic() + PATIENCE
    while (state := await snapshot(http)).requests:
        assert time.monotonic() < end, "it is never idle"
        await asyncio.sleep(0.01)
    return state


# Its /metrics, read as vLLM's, against its own records.


@dataclass(frozen=True)
class Told:
    """What the records up to one of them say, by the terms of `servers`; all are counts but `kv_usage`."""

    running: int
    waiting: int
    kv_usage: float
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    requests: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int


class Ledger:
    """Reckons from the stream alone what each record amounts to, beginning with what was `told` of an idle engine."""

    def __init__(self, state: Snapshot, told: Told) -> None:
        self.fold = EngineFold(state)
        self.blocks = state.engine.num_blocks
        self.prompts: dict[str, int] = {}  # of those without a token yet; 0 for one that was forked off
        self.prompt_tokens, self.generation_tokens = told.prompt_tokens, told.generation_tokens
        self.preemptions, self.ended = told.preemptions, told.requests
        self.steps = state.counters.steps
        self.by_steps: dict[int, list[Told]] = {self.steps: [self.told()]}  # one for each record

    def take(self, record: Record) -> None:
        self.fold.apply(record)
        for arrived in record.arrived:
            self.prompts[arrived.request] = arrived.prompt_tokens
        for joined in record.joined:
            if joined.parent is not None:
                self.prompts[joined.request] -= joined.shared_tokens
        for row in record.rows:
            self.generation_tokens += row.sampled
            if row.sampled:
                self.prompt_tokens += self.prompts.pop(row.request, 0)
        self.preemptions += len(record.preempted)
        self.ended += len(record.left) + len(record.held)
        self.steps += bool(record.rows)
        self.by_steps.setdefault(self.steps, []).append(self.told())

    def told(self) -> Told:
        state = self.fold.to_snapshot()
        free = state.pool.free + state.pool.cached
        return Told(
            running=sum(request.status == "running" for request in state.requests),
            waiting=sum(request.status == "waiting" for request in state.requests),
            kv_usage=(self.blocks - free) / self.blocks,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            preemptions=self.preemptions,
            requests=self.ended,
            prefix_queried_tokens=state.sharing.looked_up_tokens,
            prefix_hit_tokens=state.sharing.found_tokens,
        )


def as_vllm(page: str) -> Reading:
    """With vLLM's own lines alone, as a reader that knows nothing of our engine takes it for."""
    reading = read("".join(f"{line}\n" for line in page.splitlines() if "paged:" not in line))
    assert reading is not None
    assert reading.kind == "vllm"
    return reading


def told_by(reading: Reading) -> Told:
    counters = {term: sum(series.values()) for term, series in reading.counters.items()}
    gauges = reading.totals()
    return Told(
        running=int(gauges["running"]),
        waiting=int(gauges["waiting"]),
        kv_usage=gauges["kv_usage"],
        prompt_tokens=int(counters["prompt_tokens"]),
        generation_tokens=int(counters["generation_tokens"]),
        preemptions=int(counters["preemptions"]),
        requests=int(counters["requests"]),
        prefix_queried_tokens=int(counters["prefix_queried_tokens"]),
        prefix_hit_tokens=int(counters["prefix_hit_tokens"]),
    )


async def test_its_metrics_read_as_vllms_say_what_its_records_say(engine: Server) -> None:
    async with client(engine) as http:
        began = await idle(http)
        pages: list[tuple[float, str]] = []

        async def look() -> None:
            pages.append((time.monotonic(), (await http.get("/metrics")).raise_for_status().text))

        await look()
        ledger = Ledger(began, told_by(as_vllm(pages[0][1])))

        async def follow() -> None:
            async with http.stream("GET", f"/engine/steps?from={began.seq + 1}") as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data: "):
                        record = decode_item(line.removeprefix("data: ").encode())
                        assert isinstance(record, Record), f"records were lost: {record}"
                        ledger.take(record)

        async def scrape() -> None:
            while True:
                await look()
                await asyncio.sleep(0.02)

        following, scraping = asyncio.create_task(follow()), asyncio.create_task(scrape())
        while len(pages) < 30:
            await load(http, 30, seed=len(pages))
        state = await idle(http)
        scraping.cancel()
        await look()
        await until(lambda: ledger.fold.seq == state.seq or following.done())
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following

    seen = []
    for _, page in pages:
        own = read(page)
        assert own is not None
        assert own.kind == "paged-engine"
        told = told_by(as_vllm(page))
        assert told == told_by(own)
        steps = int(sum(own.counters["steps"].values()))
        assert told in ledger.by_steps[steps], f"after step {steps} no record says so"
        seen.append(told)
    assert len({told.generation_tokens for told in seen}) > 10, "too few looks while it worked"
    assert max(told.running for told in seen) > 1
    assert any(told.waiting for told in seen)
    assert any(0 < told.kv_usage < 1 for told in seen)
    last = seen[-1]
    assert last == ledger.by_steps[ledger.steps][-1]
    assert (last.running, last.waiting, last.kv_usage) == (0, 0, 0.0)
    assert last.prefix_hit_tokens > 0
    ends = as_vllm(pages[-1][1]).counters["requests"]
    assert sum(count for labels, count in ends.items() if ("finished_reason", "abort") in labels) > 0

    # What a screen makes of the first look and the last one.
    (first_time, first_page), (last_time, last_page) = pages[0], pages[-1]
    measured = measure(as_vllm(first_page), as_vllm(last_page), last_time - first_time)
    first = seen[0]
    queried = last.prefix_queried_tokens - first.prefix_queried_tokens
    assert measured.hit_rate == pytest.approx((last.prefix_hit_tokens - first.prefix_hit_tokens) / queried)
    assert measured.growth["generation_tokens"] == last.generation_tokens - first.generation_tokens
    assert not measured.restarted
    assert as_vllm(last_page).facts["blocks"] == str(ledger.blocks)


# Its KV events, heard by what hears vLLM's, against its own cache.


async def cached(http: httpx.AsyncClient) -> set[str]:
    """The hashes by which the engine itself finds blocks, as it tells them of each block: their first digits."""
    state = await idle(http)
    hashed = [block.block for block in state.blocks if block.hashed]
    answers = [(await http.get(f"/engine/blocks/{block}")).raise_for_status().json() for block in hashed]
    assert all(answer["hash"] for answer in answers)
    return {answer["hash"] for answer in answers}


def digits(tree: KvTree) -> set[str]:
    hashes = list(tree.hashes())
    assert all(isinstance(one, int) for one in hashes)
    return {f"{one:016x}"[:12] for one in hashes}


@asynccontextmanager
async def watched(server: Server) -> AsyncIterator[KvTree]:
    """A tree that follows the engine's events."""
    match = PUBLISHED.search(server.stderr.read_text())
    assert match, server.stderr.read_text()
    tree = KvTree()

    async def follow() -> None:
        async with aclosing(subscribe(match[1], match[2], topic="kv-events")) as messages:
            async for message in messages:
                tree.take(message)

    following = asyncio.create_task(follow())
    try:
        yield tree
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


async def agree(tree: KvTree, http: httpx.AsyncClient) -> set[str]:
    own = await cached(http)
    await until(lambda: digits(tree) == own)
    assert tree.resident == len(own)
    return own


async def test_its_events_are_its_cache_after_load_eviction_and_clearing(engine: Server) -> None:
    async with client(engine) as http, watched(engine) as tree:
        await load(http, 8, seed=2)
        few = await agree(tree, http)
        assert few
        await load(http, 50, seed=3)
        many = await agree(tree, http)
        assert few - many, "nothing was evicted"
        assert tree.churn.removed > 0
        (await http.post("/engine/cache/clear")).raise_for_status()
        assert await agree(tree, http) == set()
        assert tree.churn.cleared == 1
        await load(http, 8, seed=4)
        assert await agree(tree, http)
        assert tree.complete
        assert (tree.churn.unknown_removals, tree.churn.missed, tree.churn.restarted) == (0, 0, 0)
        async with watched(engine) as late:  # it has all from the replay
            await agree(late, http)
            assert late.complete


async def test_its_events_are_its_cache_after_a_crash_too(engine: Server) -> None:
    """Its process is killed while it works; the last test of this engine."""
    async with client(engine) as http, watched(engine) as tree:

        async def restarts() -> int:
            health = (await http.get("/health")).json()
            return int(health["restarts"]) if health["status"] == "ok" else -1

        await load(http, 6, seed=100)
        await agree(tree, http)
        stored = tree.churn.stored
        loading = asyncio.create_task(load(http, 60, seed=101))
        await until(lambda: tree.churn.stored > stored)
        core_of(engine).kill()
        await loading
        while await restarts() < 1:
            await asyncio.sleep(0.02)
        await load(http, 6, seed=5, longest=10)
        assert await restarts() == 1, "it was to live now"
        assert await agree(tree, http)
        assert tree.churn.restarted == 1
        assert tree.complete
