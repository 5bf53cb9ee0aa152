"""Runs of an engine that is not there: files with times from a queue and some noise, as a real run would write them."""

from __future__ import annotations

import random
from pathlib import Path

from loadgen.outcome import Outcome, RequestRecord, TokenSource
from loadgen.results.run_file import RunEnd, RunFile, RunHeader, RunWriter
from loadgen.settings import Settings


def write_run(
    path: Path,
    settings: Settings | None = None,
    *,
    seed: int = 0,
    requests: int = 40,
    rate: float = 2.0,
    slots: int = 8,
    token_seconds: float = 0.02,
    prefill_seconds: float = 0.1,
    slower: float = 1.0,
    noise: float = 0.02,
    failed: int = 0,
    long_every: int | None = None,
    stopped_by: str | None = None,
    overwrite: bool = False,
) -> RunFile:
    """`requests` arrive by a Poisson process that is the same for all seeds, and take one of `slots` in turn.

    The whole run is slower by `slower` and by noise of its own, each request by noise of its own. The first `failed`
    requests fail. Requests differ in length, the same ones for all seeds. Each `long_every`-th prompt has 3,000 tokens,
    the others 100.
    """
    settings = settings or Settings(file="t.jsonl")
    work, luck = random.Random(7), random.Random(seed)
    pace = slower * luck.lognormvariate(0, noise)
    free = [0.0] * slots
    arrival = ended = 0.0
    header = RunHeader(
        label="simulated",
        settings=settings,
        started_at="2026-11-30T00:00:00+00:00",
        sessions=requests,
        turns=requests,
        trace={},
        server={"url": settings.url or "http://127.0.0.1:1", "model": "tiny"},
        versions={},
        machine={},
    )
    with RunWriter(path, header, overwrite=overwrite) as writer:
        for index in range(requests):
            tokens = work.randint(8, 40)
            begin = max(arrival, free[0])
            step = token_seconds * pace * luck.lognormvariate(0, 2 * noise)
            first = begin + prefill_seconds * pace * luck.lognormvariate(0, 2 * noise)
            chunks = tuple(first + number * step for number in range(tokens))
            free[0] = chunks[-1]
            free.sort()
            bad = index < failed
            ended = max(ended, chunks[-1])
            writer.append(
                RequestRecord(
                    session=f"s{index}",
                    index=index,
                    turn=0,
                    outcome=Outcome.CUT if bad else Outcome.COMPLETED,
                    scheduled=arrival,
                    asked_input=None if long_every is None else 100 if index % long_every else 3000,
                    sent=arrival,
                    chunks=chunks[: tokens // 2] if bad else chunks,
                    ended=chunks[-1],
                    output_tokens=0 if bad else tokens,
                    token_source=TokenSource.NONE if bad else TokenSource.USAGE,
                )
            )
            arrival += work.expovariate(rate)
        writer.finish(RunEnd(at=ended, stopped_by=stopped_by, engine={"steps": 100, "modes": ["continuous+paged"]}))
    return RunFile.read(path)
