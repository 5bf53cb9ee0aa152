"""`python -m benchmarks.routed`: what prefix-aware routing finds on real engines, against round robin and least loaded.

Four replicas of `tiny`, each with room for a part of 50 system prompts; the same requests each time, in a closed loop.
Hits are what the answers say was cached; imbalance is the most over the mean of the requests that the workers were
sent, and of the tokens that they computed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import aiohttp

from benchmarks.options import check_file
from benchmarks.report import machine
from engine.cli import between
from engine.cluster.protocol import Routing, decode_cluster
from loadgen.engine_process import EngineProcess

SYSTEM_TOKENS, QUESTION_TOKENS = 160, (8, 24)
ANSWER_TOKENS = 8
KV_MEMORY = "1MiB"  # 128 blocks of tiny in float32: a quarter of the prompts takes 125
LEAST_RATIO, MOST_IMBALANCE = 1.5, 1.3


@dataclass(frozen=True, slots=True)
class Found:
    """One way to route: tokens of all prompts and of those found, and how unevenly requests were sent and tokens
    computed."""

    prompt_tokens: int
    cached_tokens: int
    sent: float
    computed: float

    @property
    def rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens


def requests(prompts: int, count: int, seed: int) -> list[list[int]]:
    """Prompts in token ids: each system prompt equally often, in a random order, with a question of its own."""
    chance = random.Random(seed)
    systems = [[chance.randrange(4, 250) for _ in range(SYSTEM_TOKENS)] for _ in range(prompts)]
    order = [systems[i % prompts] for i in range(count)]
    chance.shuffle(order)
    return [[*system, *(chance.randrange(4, 250) for _ in range(chance.randint(*QUESTION_TOKENS)))] for system in order]


async def play(url: str, asked: Sequence[Sequence[int]], clients: int) -> tuple[int, int]:
    """(prompt tokens, those of them that were cached) as the answers say. Raises ClientError for a failed one."""
    left = iter(asked)
    tokens = cached = 0
    async with aiohttp.ClientSession(raise_for_status=True) as http:

        async def client() -> None:
            nonlocal tokens, cached
            for prompt in left:
                body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
                async with http.post(f"{url}/v1/completions", json=body) as answer:
                    usage = (await answer.json())["usage"]
                tokens += usage["prompt_tokens"]
                cached += (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0

        await asyncio.gather(*(client() for _ in range(clients)))
    return tokens, cached


async def measure(
    workers: int, ways: Sequence[Routing], asked: Sequence[Sequence[int]], clients: int
) -> dict[Routing, Found]:
    """Each way in turn on the same workers, which forget what they had cached before it."""
    command = ["--model", "tiny", "--dtype", "float32", "--replicas", str(workers), "--kv-memory", KV_MEMORY]
    found: dict[Routing, Found] = {}
    async with (
        EngineProcess([*command, "--max-model-len", "256"], lambda _: None) as engine,
        aiohttp.ClientSession(engine.url, raise_for_status=True) as http,
    ):
        for way in ways:
            await http.post("/engine/cache/clear")
            await http.patch("/engine/cluster", json={"routing": way})
            before = await _workers(http)
            tokens, cached = await play(engine.url, asked, clients)
            sent, computed = map(_imbalance, before, await _workers(http))
            found[way] = Found(tokens, cached, sent, computed)
    return found


async def _workers(http: aiohttp.ClientSession) -> tuple[list[int], list[int]]:
    """Requests that each worker was sent, and tokens that it computed, since it started."""
    async with http.get("/engine/cluster") as answer:
        workers = decode_cluster(await answer.read()).workers
    return [one.routed for one in workers], [one.prefill_tokens + one.decode_tokens for one in workers]


def _imbalance(before: Sequence[int], after: Sequence[int]) -> float:
    """The most over the mean of what was added."""
    added = [now - was for was, now in zip(before, after, strict=True)]
    return max(added) * len(added) / sum(added)


def report(found: dict[Routing, Found], options: argparse.Namespace) -> str:
    """In Markdown."""
    here, best, plain = machine(), found["prefix"], found["round_robin"]
    ratio = best.rate / plain.rate
    met = "met" if ratio >= LEAST_RATIO and max(best.sent, best.computed) < MOST_IMBALANCE else "**missed**"
    lines = [
        "# Routing by prefix on real engines",
        "",
        f"`python -m benchmarks.routed --requests {options.requests} --clients {options.clients}` on {here['cpu']}, "
        f"{here['cores']} cores: {options.workers} replicas of `tiny` with {KV_MEMORY} of KV each, {options.prompts} "
        f"system prompts of {SYSTEM_TOKENS} tokens, questions of {QUESTION_TOKENS[0]} to {QUESTION_TOKENS[1]}.",
        "",
        "| routing | prompt tokens found | imbalance, sent | computed |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {name} | {one.rate:.1%} | {one.sent:.2f} | {one.computed:.2f} |" for name, one in found.items()),
        "",
        f"By prefix {ratio:.2f} times as many tokens are found as with round robin (aim: {LEAST_RATIO}), at an "
        f"imbalance of {max(best.sent, best.computed):.2f} (aim: under {MOST_IMBALANCE}): {met}.",
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write what was asked for; 1 if an aim is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routed", description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=between(2, 64), default=4, help="default: 4")
    parser.add_argument("--prompts", type=between(1, 1000), default=50, help="system prompts (default: 50)")
    parser.add_argument("--requests", type=between(1, 100_000), default=600, help="default: 600")
    parser.add_argument("--clients", type=between(1, 64), default=8, help="at once (default: 8)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report here, in Markdown")
    options = parser.parse_args(argv)
    check_file(parser, "--out", options.out)
    asked = requests(options.prompts, options.requests, seed=1)
    ways: Sequence[Routing] = get_args(Routing)
    found = asyncio.run(measure(options.workers, ways, asked, options.clients))
    told = report(found, options)
    print(told, end="")
    if options.out is not None:
        options.out.write_text(told)
    return int("**missed**" in told)


if __name__ == "__main__":
    sys.exit(main())
