"""Which server to put before a Ray cluster: ours, or Ray Serve's ingress. Both pass on the same source's tokens.

`python -m benchmarks.ingress --serve-python PYTHON [--rounds 3] [--json FILE]`: PYTHON is one that has ray[serve].
Steady: each stream makes a token every so often; what is told is how much later it arrives, and the processor time of
all processes but the client, Ray's own among them. Flat out: streams make tokens as fast as they are taken. The sides
take turns, so that what else runs on the machine meets both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import msgspec
import psutil

STEADY_STREAMS, STEADY_TOKENS, STEADY_INTERVAL = 16, 100, 0.03  # at a time, of each, seconds between two
FLAT_STREAMS, FLAT_TOKENS, FLAT_REQUESTS = 16, 50, 200
WARM_REQUESTS = 20
START_SECONDS = 60.0


class Figures(msgspec.Struct, frozen=True):
    """Of one round: milliseconds that a token was under way, processor milliseconds per 1,000 tokens at a steady rate,
    and streams and tokens a second flat out."""

    first_ms: float  # p50 from a request to its first token
    added_p50_ms: float
    added_p99_ms: float
    cpu_ms_per_1000: float
    requests_per_second: float
    tokens_per_second: float
    flat_cpu_ms_per_1000: float


class Stream(msgspec.Struct, frozen=True):
    first: float  # seconds from its request
    added: list[float]  # seconds of each token


async def stream(session: aiohttp.ClientSession, url: str, count: int, interval: float) -> Stream:
    began = time.monotonic()
    first, added = 0.0, []
    async with session.get(url, params={"count": str(count), "interval": str(interval)}) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: "):
                now = time.monotonic()
                first = first or now - began
                added.append(now - json.loads(line[6:])["made"])
    if len(added) != count:
        raise RuntimeError(f"a stream of {count} tokens had {len(added)}")
    return Stream(first, added)


async def streams(url: str, at_a_time: int, requests: int, count: int, interval: float) -> list[Stream]:
    todo = iter(range(requests))
    found: list[Stream] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def user() -> None:
            for _ in todo:
                found.append(await stream(session, url, count, interval))  # noqa: PERF401

        await asyncio.gather(*(user() for _ in range(at_a_time)))
    return found


@contextmanager
def front(python: str, side: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server, its address, and the process that has all others of it below it."""
    command = [python, "-m", "benchmarks.ingress_fronts", side]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        lines = (line.strip() for line in process.stdout)
        port = next(line for line in lines if line.isdecimal())
        yield f"http://127.0.0.1:{port}/", psutil.Process(process.pid)
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def processor_seconds(root: psutil.Process) -> float:
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += float(times.user + times.system)
    return total


def measure(python: str, side: str) -> Figures:
    with front(python, side) as (url, root):
        asyncio.run(streams(url, FLAT_STREAMS, WARM_REQUESTS, FLAT_TOKENS, 0.0))
        before = processor_seconds(root)
        steady = asyncio.run(streams(url, STEADY_STREAMS, 2 * STEADY_STREAMS, STEADY_TOKENS, STEADY_INTERVAL))
        between, began = processor_seconds(root), time.monotonic()
        asyncio.run(streams(url, FLAT_STREAMS, FLAT_REQUESTS, FLAT_TOKENS, 0.0))
        took, after = time.monotonic() - began, processor_seconds(root)
    added = sorted(one for each in steady for one in each.added)
    made = FLAT_REQUESTS * FLAT_TOKENS
    return Figures(
        first_ms=statistics.median(one.first for one in steady) * 1e3,
        added_p50_ms=added[len(added) // 2] * 1e3,
        added_p99_ms=added[len(added) * 99 // 100] * 1e3,
        cpu_ms_per_1000=(between - before) / len(added) * 1e6,
        requests_per_second=FLAT_REQUESTS / took,
        tokens_per_second=made / took,
        flat_cpu_ms_per_1000=(after - between) / made * 1e6,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve-python", required=True, metavar="PYTHON", help="that has ray[serve]")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    found: dict[str, list[Figures]] = {"ours": [], "serve": []}
    for _ in range(arguments.rounds):
        found["ours"].append(measure(sys.executable, "ours"))
        found["serve"].append(measure(arguments.serve_python, "serve"))
    for name in Figures.__struct_fields__:
        told = {side: [getattr(one, name) for one in figures] for side, figures in found.items()}
        texts = (f"{side} {statistics.median(one):9.2f} ({min(one):.2f}-{max(one):.2f})" for side, one in told.items())
        print(f"{name:22}", "   ".join(texts))
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))


if __name__ == "__main__":
    main()
