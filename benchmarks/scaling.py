"""`python -m benchmarks.scaling`: what one front can take of many engines, part by part (docs/scaling.md).

What an engine makes of chats is simulated, and what the front does with each piece of it is timed alone: reading the
news of caches into the router's index, and every step's record into the worker's tally. What it costs the front to pass
tokens on is the processor time of a real one, of two engines with the model `tiny`, while it streams.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import msgspec
import psutil

from benchmarks.messages import Run
from benchmarks.streaming import complete
from benchmarks.works import Work
from engine.cli import between
from engine.cluster.protocol import ClusterControl
from engine.cluster.router import Router
from engine.cluster.tally import WorkerTally
from engine.messages import KvNews
from engine.protocol import Control, Record, decode_item, encode
from engine.simulator.pools import PoolSimulator
from engine.simulator.prediction import Pools, Settings
from engine.simulator.repeated import with_new_sessions
from engine.simulator.runner import StepCost
from engine.simulator.simulate import Simulator
from engine.trace_lengths import read_trace
from loadgen.engine_process import EngineProcess

TRACE = Path(__file__).resolve().parents[1] / "traces" / "chat500.jsonl"
ENGINES, REQUESTS, CROWD = 10, 60, 6.0  # REQUESTS and CROWD of each engine
ROUNDS = 5


class Made(msgspec.Struct, frozen=True):
    """What engines made in all of a run."""

    requests: int
    tokens: int
    records: int
    news: list[KvNews]


class Parts(msgspec.Struct, frozen=True):
    """Of one engine a second while as many come as end, and microseconds of processor time for each piece."""

    tokens: float
    records: float
    record_bytes: float
    record_us: float  # to read and to count
    news: float
    names: float  # of blocks, in the news
    name_us: float
    token_us: float  # of the front's process, to pass one on, all else that it does for it included


class _Listening(PoolSimulator):
    """Keeps what engines tell of their caches."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.news: list[KvNews] = []
        take = self.router.take

        def taking(name: str, news: KvNews) -> None:
            self.news.append(news)
            take(name, news)

        self.router.take = taking  # type: ignore[method-assign]


def simulated(engines: int, requests: int) -> tuple[Made, list[Record]]:
    """What so many engines tell, together, and the records of one alone; `requests` are of each."""
    trace = with_new_sessions(read_trace(TRACE), requests * engines)
    settings = Settings(
        control=Control(),
        block_size=16,
        num_blocks=1456,
        num_host_blocks=0,
        kv_bytes_per_token=23_040,
        max_model_len=4096,
        cost=StepCost(),
        requests=len(trace),
        crowd=CROWD * engines,
    )
    pools = _Listening(trace, settings, Pools(ClusterControl(replicas=engines), 1e9))
    pools.run()
    prediction = pools.prediction()
    made = Made(
        prediction.requests.completed,
        prediction.requests.output_tokens,
        prediction.throughput.steps,
        pools.news,
    )
    alone = Simulator(trace[:requests], msgspec.structs.replace(settings, requests=requests, crowd=CROWD))
    records: list[Record] = []
    step = alone.core.step

    def stepping() -> object:
        outputs, record = step()
        if record is not None:
            records.append(record)
        return outputs, record

    alone.core.step = stepping  # type: ignore[method-assign, assignment]
    alone.run()
    return made, records


def best(act: Callable[[], None]) -> float:
    """Processor seconds, the least of some rounds."""
    found = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        act()
        found.append(time.process_time() - begun)
    return min(found)


def read_records(told: Sequence[bytes]) -> None:
    tally = WorkerTally()
    for text in told:
        record = decode_item(text)
        assert isinstance(record, Record)
        tally.take(record, separate=False)


def read_news(told: Sequence[bytes]) -> None:
    router = Router(16)
    router.add_worker("one", "replica")
    decoder = msgspec.msgpack.Decoder(KvNews)
    for frame in told:
        router.take("one", decoder.decode(frame))


async def token_seconds(streams: int, length: int) -> float:
    """Processor seconds of a real front for each token, while two engines stream."""
    os.environ["OMP_NUM_THREADS"] = "1"
    async with EngineProcess(["--model", "tiny", "--replicas", "2", "--kv-memory", "64MiB"], lambda _: None) as engine:
        front = _front(engine.url)
        work = Work("streams", tuple((1 + at % 50, 2, 3) for at in range(streams)), (length,) * streams)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            await _stream(http, engine.url, work)
            before = front.cpu_times()
            await _stream(http, engine.url, work)
            after = front.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return float(spent) / (streams * length)


async def _stream(http: aiohttp.ClientSession, url: str, work: Work) -> Run:
    return await complete(http, url, "tiny", work, stream=True, say=lambda _: None)


def _front(url: str) -> psutil.Process:
    """The process that serves there: a child of this one that listens."""
    port = int(url.rpartition(":")[2])
    for child in psutil.Process().children(recursive=True):
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in child.net_connections("tcp")):
            return child
    raise RuntimeError(f"nobody of this process's children listens at {url}")


def measure(engines: int, requests: int, streams: int, length: int) -> Parts:
    made, records = simulated(engines, requests)
    texts, frames = [encode(record) for record in records], [msgspec.msgpack.encode(news) for news in made.news]
    names = sum(len(news.stored) + len(news.removed) for news in made.news)
    trace = read_trace(TRACE)
    each = made.requests / (CROWD * len(trace) / (trace[-1].arrival - trace[0].arrival))
    return Parts(
        tokens=made.tokens / each,
        records=made.records / each,
        record_bytes=sum(map(len, texts)) / len(texts),
        record_us=best(lambda: read_records(texts)) / len(texts) * 1e6,
        news=len(made.news) / each,
        names=names / each,
        name_us=best(lambda: read_news(frames)) / names * 1e6,
        token_us=asyncio.run(token_seconds(streams, length)) * 1e6,
    )


def report(parts: Parts) -> str:
    """A row a part: what an engine makes, what a piece costs, and how many engines fill one core with it."""
    rows = (
        ("tokens passed on", parts.tokens, parts.token_us),
        ("records of steps, read and counted (in the row above too)", parts.records, parts.record_us),
        ("names of blocks, into the index (in the first row too)", parts.names, parts.name_us),
    )
    lines = ["| | of one engine, a second | µs each | engines that fill a core |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {name} | {rate:.1f} | {cost:.1f} | {1e6 / (rate * cost):,.0f} |" for name, rate, cost in rows]
    return "\n".join([*lines, "", f"A record is {parts.record_bytes:,.0f} bytes; news come {parts.news:.1f} a second."])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", type=between(1, 1000), default=ENGINES, metavar="N", help="default: %(default)s")
    parser.add_argument("--requests", type=between(1, 10_000), default=REQUESTS, metavar="N", help="of each engine")
    parser.add_argument("--streams", type=between(1, 512), default=64, metavar="N", help="default: %(default)s")
    parser.add_argument("--tokens", type=between(2, 1000), default=100, metavar="N", help="of each (default: 100)")
    options = parser.parse_args(argv)
    print(report(measure(options.engines, options.requests, options.streams, options.tokens)))


if __name__ == "__main__":
    main()
