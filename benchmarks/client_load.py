"""What loadgen's client can bear and how exact it is, beside a golden server that knows every send time.

    python -m benchmarks.client_load            all four parts, three minutes
    python -m benchmarks.client_load rate       300 requests/s for 60 s: send lag, none lost, memory
    python -m benchmarks.client_load streams    1,000 streams open at once
    python -m benchmarks.client_load exact      50 requests/s: every latency against the server's own
    python -m benchmarks.client_load libraries  what a request costs with aiohttp and with httpx

The first three run `loadgen replay` as a user does. It and the server share the machine and its clock, so others on
it are in the figures: on a busy one put `chrt -r 10` before the command. Exits with 1 if a limit is passed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from loadgen.metrics.latency import latencies
from loadgen.metrics.summary import summarize
from loadgen.options import EXIT_FAILED_TURNS
from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.run_file import RunFile
from loadgen.traces.chat import trace_lines
from loadgen.traces.model import FORMAT, VERSION, Header, Session, Turn

GOLDEN = Path(__file__).parents[1] / "tests/loadgen/golden.py"
SEND_LAG_LIMIT = 10.0  # milliseconds at the 99th percentile
MEMORY_LIMIT = 300.0  # MB
EXACT_LIMIT = 2.0  # milliseconds


class Served(msgspec.Struct, frozen=True):
    """What the golden server did for one request."""

    prompt: str
    received: float
    content_times: list[float]


class Told(msgspec.Struct, frozen=True):
    served: list[Served]
    peak_in_flight: int


@dataclass(frozen=True, slots=True)
class Played:
    """One `loadgen replay`. `peak` is the most memory it had, in MB."""

    records: list[RequestRecord]
    served: dict[str, Served]
    peak_in_flight: int
    peak: float
    client: dict[str, Any]

    def figure(self, name: str) -> Any:
        return summarize(self.records)[name]

    def lost(self) -> list[str]:
        """What is not as it was asked, served and counted: empty for a client that tells the truth."""
        wrong = [f"{r.session}: {r.outcome} {r.detail}" for r in self.records if r.outcome is not Outcome.COMPLETED]
        for record in self.records:
            told = self.served.get(record.session)
            if told is None:
                wrong.append(f"{record.session}: never came to the server")
            elif (len(record.chunks), record.output_tokens) != (len(told.content_times), record.asked_output):
                wrong.append(f"{record.session}: {len(record.chunks)} chunks, {record.output_tokens} tokens")
        return wrong


@contextlib.contextmanager
def golden(first: float, gap: float) -> Iterator[str]:
    """A golden server in a process of its own; its address."""
    command = [sys.executable, str(GOLDEN), "--first", str(first), "--gap", str(gap)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def told_by(url: str) -> Told:
    """What a golden server did since it was last asked."""
    with urllib.request.urlopen(f"{url}/golden/served") as reply:
        return msgspec.json.decode(reply.read(), type=Told)


def replay(url: str, requests: int, tokens: int, *options: str) -> Played:
    """Play that many requests of one message each, and read what was kept."""
    names = [f"r{number}" for number in range(requests)]
    sessions = [Session(session=name, arrival=0.0, turns=(Turn(user=name, output_tokens=tokens),)) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        trace, out = Path(folder, "trace.jsonl"), Path(folder, "run.jsonl")
        trace.write_bytes(b"".join(trace_lines(Header(FORMAT, VERSION), sessions)))
        command = [sys.executable, "-m", "loadgen.cli", "replay", str(trace), "--url", url, "--out", str(out)]
        process = subprocess.Popen([*command, "--no-plots", *options], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, EXIT_FAILED_TURNS):
            sys.exit(f"{' '.join(command)} ended with {process.returncode}")
        run = RunFile.read(out)
        records = list(run.records())
    told = told_by(url)
    served = {one.prompt: one for one in told.served}
    return Played(records, served, told.peak_in_flight, used.ru_maxrss / 1024, run.end.client if run.end else {})


class Verdicts:
    """Lines of a table, each with its limit."""

    def __init__(self) -> None:
        self.passed = True

    def say(self, what: str, value: str, kept: bool | None = None, limit: str = "") -> None:
        self.passed = self.passed and kept is not False
        mark = "" if kept is None else ("ok" if kept else "MISSED")
        print(f"  {what:44} {value:>28}  {limit:20} {mark}", flush=True)

    def counts(self, played: Played, requests: int) -> None:
        lost = played.lost()
        self.say("requests, chunks and tokens lost or miscounted", f"{len(lost)} of {requests:,}", not lost, "none")
        for line in lost[:3]:
            print(f"    {line}")
        self.say("records", f"{len(played.records):,}", len(played.records) == requests, f"{requests:,}")
        self.say("memory of loadgen", f"{played.peak:.0f} MB", played.peak <= MEMORY_LIMIT, f"{MEMORY_LIMIT:.0f} MB")
        share = played.client.get("client_cpu_share")
        self.say("client's CPU, of one core", "?" if share is None else f"{share:.0%}")


def rate(verdicts: Verdicts, per_second: float, seconds: float, tokens: int) -> None:
    """Open loop at a rate."""
    print(f"{per_second:g} requests/s for {seconds:g} s, streams of {tokens} chunks 20 ms apart")
    requests = round(per_second * seconds)
    with golden(0.05, 0.02) as url:
        played = replay(url, requests, tokens, "--arrivals", f"constant:{per_second:g}")
    verdicts.counts(played, requests)
    lags = [played.figure(f"{name}_send_lag_ms") for name in ("p50", "p99", "max")]
    told = " / ".join(f"{lag:.1f}" for lag in lags)
    verdicts.say("send lag p50 / p99 / max", f"{told} ms", lags[1] <= SEND_LAG_LIMIT, f"p99 <= {SEND_LAG_LIMIT:g} ms")
    verdicts.say("requests completed per second", f"{played.figure('request_throughput'):.1f}")
    verdicts.say("open at once, at most", f"{played.peak_in_flight:,}")


def streams(verdicts: Verdicts, count: int, tokens: int = 40) -> None:
    """All at once, each open for ten seconds."""
    print(f"{count:,} streams at once, {tokens} chunks each, a quarter of a second apart")
    with golden(1.0, 0.25) as url:
        played = replay(url, count, tokens, "--arrivals", "inf")
    verdicts.counts(played, count)
    verdicts.say("open at once", f"{played.peak_in_flight:,}", played.peak_in_flight == count, f"{count:,}")


def exact(verdicts: Verdicts, per_second: float, seconds: float, tokens: int = 20) -> None:
    """Each request's latencies against the server's own times of receipt and of its writes."""
    print(f"every latency at {per_second:g} requests/s for {seconds:g} s, against the server's own")
    requests = round(per_second * seconds)
    with golden(0.05, 0.0213) as url:  # no multiple of the gap between arrivals: chunks do not come in step
        played = replay(url, requests, tokens, "--arrivals", f"constant:{per_second:g}")
    verdicts.counts(played, requests)
    for name, errors in errors_of(played).items():
        errors.sort()
        p50, p99, most = (errors[int(share * (len(errors) - 1))] for share in (0.5, 0.99, 1))
        told = f"{p50:.2f} / {p99:.2f} / {most:.2f} ms"
        over = sum(error > EXACT_LIMIT for error in errors)
        limit = f"{over} over {EXACT_LIMIT:g} ms"
        verdicts.say(f"{name}: error p50 / p99 / max, of {len(errors):,}", told, not over, limit)


def errors_of(played: Played) -> dict[str, list[float]]:
    """How far each latency is from the server's own, in milliseconds, by the name of the metric."""
    errors: dict[str, list[float]] = {"ttft": [], "e2el": [], "tpot": [], "itl": []}
    for record in played.records:
        ours, theirs = latencies(record), played.served[record.session]
        times = [(moment - theirs.received) * 1000 for moment in theirs.content_times]
        truth = (times[0], times[-1], (times[-1] - times[0]) / (record.output_tokens - 1))
        for name, true, measured in zip(errors, truth, (ours.ttft, ours.e2el, ours.tpot), strict=False):
            assert measured is not None
            errors[name].append(abs(measured - true))
        errors["itl"] += [abs(gap - (b - a)) for gap, (a, b) in zip(ours.itl, pairwise(times), strict=True)]
    return errors


_One = Callable[[bytes, list[float]], Awaitable[None]]


async def _with_aiohttp(url: str, play: Callable[[_One], Awaitable[None]]) -> None:
    from loadgen.asking import Payload
    from loadgen.client import Response, complete, open_http

    async with open_http() as http:

        async def one(body: bytes, chunks: list[float]) -> None:
            response = Response(chunks=chunks)
            payload = Payload("/v1/chat/completions", body, None, None)
            await complete(http, url, payload, response, timeout=600.0, on_chunk=lambda: None)

        await play(one)


async def _with_httpx(url: str, play: Callable[[_One], Awaitable[None]]) -> None:
    """The same work over httpx: its own transport, our parser of events and of chunks."""
    import httpx

    from loadgen.client import clock, decode_chunk
    from loadgen.response import Response, take_chunk
    from loadgen.sse import EventParser

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None, headers={"Content-Type": "application/json"}) as http:

        async def one(body: bytes, chunks: list[float]) -> None:
            response, parser = Response(), EventParser()
            async with http.stream("POST", f"{url}/v1/chat/completions", content=body) as reply:
                async for received in reply.aiter_raw():
                    now = clock()
                    events = [event for event in parser.feed(received) if event != b"[DONE]"]
                    chunks += [now for event in events if take_chunk(decode_chunk(event), response)]

        await play(one)


async def _load(per_second: float, seconds: float, tokens: int, one: _One, told: dict[str, float]) -> None:
    """An open loop of the least kind: the cost is the library's."""
    body = json.dumps(
        {"model": "golden", "messages": [{"role": "user", "content": "r"}], "max_tokens": tokens, "stream": True}
    ).encode()
    lags: list[float] = []
    chunks: list[list[float]] = []

    async def at(due: float) -> None:
        lags.append((time.monotonic() - due) * 1000)
        chunks.append([])
        await one(body, chunks[-1])

    cpu, begin = time.process_time(), time.monotonic() + 0.1
    async with asyncio.TaskGroup() as group:
        for number in range(round(per_second * seconds)):
            due = begin + number / per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(at(due))
    counts = Counter(len(times) for times in chunks)
    if set(counts) != {tokens}:
        raise AssertionError(f"answers of {tokens} chunks came as {dict(counts)}")
    told["cpu"] = time.process_time() - cpu
    told["lag"] = sorted(lags)[int(0.99 * (len(lags) - 1))]


def libraries(verdicts: Verdicts, per_second: float, seconds: float, rounds: int = 2) -> None:
    """CPU of the client for the same streams, with short and with long answers: what a request and a chunk cost."""
    print(f"aiohttp against httpx at {per_second:g} requests/s for {seconds:g} s, {rounds} rounds of each")
    short, long = 1, 33
    requests = per_second * seconds
    for name, library in (("aiohttp", _with_aiohttp), ("httpx", _with_httpx)) * rounds:
        cost: dict[int, dict[str, float]] = {}
        with golden(0.05, 0.02) as url:
            for tokens in (short, long):
                told = cost[tokens] = {}

                async def play(one: _One, tokens: int = tokens, told: dict[str, float] = told) -> None:
                    await _load(per_second, seconds, tokens, one, told)

                asyncio.run(library(url, play))
        request = cost[short]["cpu"] / requests * 1e6
        chunk = (cost[long]["cpu"] - cost[short]["cpu"]) / requests / (long - short) * 1e6
        lag = cost[long]["lag"]
        verdicts.say(f"{name}: a request, and each chunk more", f"{request:.0f} us, {chunk:.0f} us")
        verdicts.say(f"{name}: send lag p99", f"{lag:.1f} ms")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("rate", "streams", "exact", "libraries")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)} (default: all)")
    parser.add_argument("--rate", type=float, default=300.0, help="requests/s of 'rate' (default: 300)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long 'rate' is (default: 60)")
    parser.add_argument("--tokens", type=int, default=16, help="chunks of an answer in 'rate' (default: 16)")
    parser.add_argument("--streams", type=int, default=1000, help="open at once in 'streams' (default: 1000)")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(parts):
        parser.error(f"no part {', '.join(unknown)}; they are {', '.join(parts)}")
    asked = options.parts or parts
    verdicts = Verdicts()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before")
    if "rate" in asked:
        rate(verdicts, options.rate, options.seconds, options.tokens)
    if "streams" in asked:
        streams(verdicts, options.streams)
    if "exact" in asked:
        exact(verdicts, 50.0, 20.0)
    if "libraries" in asked:
        libraries(verdicts, 50.0, 5.0)
    return 0 if verdicts.passed else 1


if __name__ == "__main__":
    sys.exit(main())
