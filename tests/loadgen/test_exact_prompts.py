"""Prompts made for lengths and hash ids, asked of a real engine: its usage and its cache have the last word."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from loadgen.asking import Asker
from loadgen.client import Response, Usage, complete, open_http
from loadgen.engine_process import EngineProcess
from loadgen.needs import Needs
from loadgen.probe import probe
from loadgen.server import ServerFacts, find_server
from loadgen.settings import Settings
from loadgen.text.tokenizer import ServerTokenizer
from loadgen.text.vocabulary import Endpoint, Vocabulary, find_vocabulary
from loadgen.traces.model import FORMAT, VERSION, Header, Session, Turn

BLOCK = 16
CONTEXT = 1024
AT_ONCE = 16


@dataclass(frozen=True)
class Asked:
    """A probed engine, and what asks it."""

    http: aiohttp.ClientSession
    facts: ServerFacts
    vocabulary: Vocabulary
    asker: Asker
    tokenizer: ServerTokenizer

    def body(self, turn: Turn, index: int) -> dict[str, Any]:
        return dict(msgspec.json.decode(self.asker.payload(one(turn), index, 0, {}).body))

    async def tokens(self, turn: Turn, index: int) -> list[int]:
        body = self.body(turn, index)
        if "prompt" in body:
            return await self.tokenizer.encode(body["prompt"], special=True)
        tokens = await self.tokenizer.encode_chat(body["messages"])
        assert tokens is not None
        return tokens

    async def usage(self, turn: Turn, index: int) -> Usage:
        response = Response()
        payload = self.asker.payload(one(turn), index, 0, {})
        await complete(self.http, self.facts.url, payload, response, timeout=60, on_chunk=lambda: None)
        assert response.usage is not None, response.detail
        assert response.usage.completion_tokens == turn.output_tokens
        return response.usage


def one(turn: Turn) -> Session:
    return Session(session="s", arrival=0.0, turns=(turn,))


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[str]:
    arguments = ("--model", "tiny", "--kv-memory", "64MiB", "--max-model-len", str(CONTEXT), "--block-size", str(BLOCK))
    async with EngineProcess(arguments, lambda _: None) as process:
        yield process.url


async def asked(http: aiohttp.ClientSession, url: str, endpoint: Endpoint, seed: int) -> Asked:
    settings = Settings(file="t", endpoint=endpoint, seed=seed)
    needs = Needs(settings)
    needs.add(one(Turn(input_tokens=100, output_tokens=1)))
    facts = await find_server(http, url, None)
    tokenizer = ServerTokenizer(http, url, facts.model)
    facts, vocabulary = await probe(http, facts, settings, needs, await find_vocabulary(tokenizer))
    assert vocabulary is not None
    asker = Asker(Header(FORMAT, VERSION, block_size=BLOCK), facts, settings, vocabulary)
    return Asked(http, facts, vocabulary, asker, tokenizer)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("endpoint", list(Endpoint))
async def test_every_length_to_the_context_is_exact(engine: str, endpoint: Endpoint) -> None:
    async with open_http() as http:
        ask = await asked(http, engine, endpoint, seed=1)
        slots = asyncio.Semaphore(AT_ONCE)

        async def counted(tokens: int) -> int | None:
            async with slots:
                usage = await ask.usage(Turn(input_tokens=tokens, output_tokens=1), tokens)
                assert usage.cached_tokens is not None
                assert usage.cached_tokens < ask.vocabulary.frames[endpoint].before + 2, "nothing is shared"
                return usage.prompt_tokens

        least = ask.vocabulary.frames[endpoint].least
        lengths = [*range(least, 80), *range(80, CONTEXT - 1, 37), CONTEXT - 1]
        assert await asyncio.gather(*map(counted, lengths)) == lengths


def chain(rng: random.Random, known: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Hash ids as traces have them: one stands for all before it, so a prompt goes on from a beginning of another."""
    begun = rng.choice(known)[: rng.randrange(8)] if known else ()
    first = 1000 * len(known)
    return (*begun, *range(first, first + rng.randrange(1, 8)))


def ideal(ids: Sequence[int], tokens: int, seen: set[int]) -> int:
    """Tokens that a cache of all full blocks seen before has; the last token is always computed."""
    found = next((place for place, name in enumerate(ids[: tokens // BLOCK]) if name not in seen), tokens // BLOCK)
    return min(found, (tokens - 1) // BLOCK) * BLOCK


@pytest.mark.asyncio(loop_scope="module")
async def test_equal_hash_ids_are_equal_tokens_and_hit_whole_blocks(engine: str) -> None:
    rng = random.Random(3)
    async with open_http() as http:
        ask = await asked(http, engine, Endpoint.COMPLETIONS, seed=2)
        prompts: list[tuple[int, ...]] = []
        seen: set[int] = set()
        blocks: dict[int, list[int]] = {}
        for index in range(120):
            ids = chain(rng, prompts)
            prompts.append(ids)
            tokens = len(ids) * BLOCK - rng.choice([0, 0, rng.randrange(BLOCK)])
            turn = Turn(input_tokens=tokens, output_tokens=1, hash_ids=ids)
            told = await ask.tokens(turn, index)
            for place, name in enumerate(ids[: tokens // BLOCK]):
                part = told[place * BLOCK : (place + 1) * BLOCK]
                assert blocks.setdefault(name, part) == part
            usage = await ask.usage(turn, index)
            assert usage.prompt_tokens == tokens
            assert usage.cached_tokens is not None
            partly = usage.cached_tokens - ideal(ids, tokens, seen)  # of the block after: it may begin alike
            assert 0 <= partly < 2
            seen.update(ids[: tokens // BLOCK])
        texts = {tuple(block) for block in blocks.values()}
        assert len(texts) == len(blocks) > 300
