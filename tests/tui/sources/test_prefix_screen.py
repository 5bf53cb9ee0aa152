"""The live screen of a server with KV events: prefixes by their texts, but not while it is paused or without texts."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager

import pytest

from servers.kv_events import BlockRemoved, BlockStored
from tests.servers.kv_publisher import KvPublisher
from tests.servers.stand_in import StandIn
from tests.tui.sources.test_attach import EVERY, showing
from tui.session import Session
from tui.sources.attach import Attach
from tui.sources.targets import KvEndpoint, target, with_kv
from tui.texts import SWITCHED_OFF

SYSTEM, WHY, HOW = (1, 2, 3, 4), (1_000, 5, 6, 7), (2_000, 8, 9, 10)
WORDS = {1: "You are a helper", 1_000: "Why is that?", 2_000: "How is it done?"}


@asynccontextmanager
async def watched(kind="vllm", texts=True, refuses=False):
    """The screen, its server and its publisher, once a system prompt with two questions is cached."""
    with KvPublisher() as publisher:
        server = StandIn(kind)
        server.words = None if refuses else lambda tokens: WORDS.get(tokens[0], f"words {tokens[0]}")
        async with server:
            one = with_kv(target(server.url, "s0"), (KvEndpoint(publisher.endpoint),))
            async with showing(Attach([one], every=EVERY, texts=texts)) as screen:
                await asyncio.to_thread(publisher.wait_for_subscriber)
                publisher.publish(BlockStored((1,), None, SYSTEM, 4))
                publisher.publish(BlockStored((2,), 1, WHY, 4), BlockStored((3,), 1, HOW, 4))
                await screen.press("3", "3")
                await screen.until(lambda: "3 prefix runs" in screen.text("sharing"))
                yield screen, server, publisher


@pytest.mark.parametrize("kind", ["vllm", "sglang", "paged-engine"])
async def test_prefixes_are_told_by_their_texts_until_the_screen_is_paused(kind):
    async with watched(kind) as (screen, server, publisher):
        await screen.until(lambda: all(f'"{words}"' in screen.text("sharing") for words in WORDS.values()))
        asked = len(server.detokenized)
        assert asked == 3
        looks = server.metrics_asked
        await screen.until(lambda: server.metrics_asked > looks + 2)  # what is paused is a look
        await screen.press("space")
        paused = screen.text("sharing")
        assert "#000000" in paused
        assert not any(words in paused for words in WORDS.values())
        assert "tokens 1" not in paused
        await screen.press("down", "i")
        assert "texts are of now: not read while paused" in screen.text("inspect")
        await screen.press("escape", "space")
        await screen.until(lambda: "You are a helper" in screen.text("sharing"))
        publisher.publish(BlockRemoved((3,)))
        publisher.publish(BlockStored((4,), 2, (30, 31, 32, 33), 4))
        await screen.until(
            lambda: '"You are a helper' in screen.text("sharing") and "How" not in screen.text("sharing")
        )
        await screen.until(lambda: server.detokenized[-1]["tokens"] == [*SYSTEM, *WHY, 30, 31, 32, 33])


async def test_a_server_that_makes_no_texts_is_asked_once_and_token_ids_are_shown():
    async with watched(refuses=True) as (screen, server, _):
        await screen.until(lambda: server.detokenized)
        await screen.until(lambda: "tokens 1 2 3 4" in screen.text("sharing"))
        looks = server.metrics_asked
        await screen.until(lambda: server.metrics_asked > looks + 3)
        assert len(server.detokenized) == 1
        await screen.press("down", "i")
        inspected = re.sub(r"[│\s]+", " ", screen.text("inspect"))
        assert "/detokenize answers HTTP 404" in inspected
        assert "tokens 1 2 3 4" in inspected


async def test_with_no_texts_nothing_is_asked_kept_or_shown():
    async with watched(texts=False) as (screen, server, _):
        assert "#000000" in screen.text("sharing")
        assert "tokens 1 2" not in screen.text("sharing")
        await screen.press("down", "i")
        assert "--no-texts" in screen.text("inspect")
        assert server.detokenized == []
        (source,) = screen.attach.shown.sources
        tree = source.view().kv[0].tree
        assert not any(tree.opening(run, 9) for run in tree.runs())


async def test_with_no_texts_an_engines_own_are_not_read_either():
    from tui.attached import Steps

    steps = Steps(Session("http://127.0.0.1:1", texts=False), True, lambda words, bad: None)
    await steps._texts.read("a", 1)
    assert steps._texts.texts.unknown == SWITCHED_OFF
