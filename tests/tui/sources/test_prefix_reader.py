"""Texts of token ids, asked of servers on loopback: what is looked at, one at a time, and not of those that refuse."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.servers.stand_in import StandIn
from tests.tui.sources.waiting import until
from tui.sources import prefix_reader
from tui.sources.http import Http
from tui.sources.items import SourceHead
from tui.sources.prefix_reader import NOT_YET, PrefixReader
from tui.sources.source import Source
from tui.sources.targets import HttpSettings, target


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@dataclass
class Stage:
    server: StandIn
    reader: PrefixReader
    source: Source
    clock: Clock

    @property
    def asked(self):
        return [tuple(body["tokens"]) for body in self.server.detokenized]

    async def read(self, *tokens):
        """Look at them until all are known, as a screen does."""
        await until(lambda: "" not in {self.reader.of(one) for one in tokens})  # it looks at all of them
        return [self.reader.of(one) for one in tokens]

    def known(self, kind, version="1"):
        self.source.take(SourceHead(0, "one", self.server.url, kind, version, time=self.clock.now))


@asynccontextmanager
async def stage(kind="vllm", key=None):
    """A server that makes `<1 2>` of token ids 1 and 2, and its reader."""
    clock = Clock()
    async with StandIn(kind, key=key) as server:
        server.words = lambda tokens: f"<{' '.join(map(str, tokens))}>"
        one = target(server.url, "one")
        source = Source("one", server.url, clock)
        reader = PrefixReader(one, HttpSettings(key), source, clock)
        it = Stage(server, reader, source, clock)
        it.known(kind)
        running = asyncio.create_task(reader.run())
        try:
            yield it
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "paged-engine"])
async def test_what_is_looked_at_is_asked_once_with_the_key_of_the_metrics(kind):
    async with stage(kind, key="sk-one") as it:
        assert it.reader.of(()) == it.reader.of((1, 2)) == ""
        assert it.reader.unknown == NOT_YET
        assert await it.read((1, 2), (3,)) == ["<1 2>", "<3>"]
        assert it.asked == [(1, 2), (3,)]
        assert it.server.most_at_once == 1
        special = [body.get("skip_special_tokens") for body in it.server.detokenized]
        assert special == [False if kind == "sglang" else None] * 2


async def test_what_nobody_looks_at_any_more_is_forgotten():
    async with stage() as it:
        await it.read((1,), (2,))
        it.clock.now += prefix_reader.LOOKED + 1
        await it.read((2,), (3,))
        assert set(it.reader._texts) == {(2,), (3,)}
        assert it.asked == [(1,), (2,), (3,)]
        await it.read((1,))
        assert it.asked[3:] == [(1,)]


async def test_of_many_the_last_that_were_looked_at_are_kept(monkeypatch):
    monkeypatch.setattr(prefix_reader, "MOST", 3)
    async with stage() as it:
        for number in range(6):
            await it.read((number,))
        assert len(it.reader._texts) <= 3
        assert len(it.reader._looked) <= 4  # the newest is not asked for yet


@pytest.mark.parametrize("status", [401, 403, 404, 405, 501])
async def test_a_server_that_refuses_is_not_asked_again_until_it_is_another(status):
    async with stage() as it:
        it.server.words, it.server.wordless = None, status
        it.reader.of((1,))
        await until(lambda: str(status) in it.reader.unknown)
        for number in range(5):
            it.reader.of((number,))
            await asyncio.sleep(0.01)
        assert it.asked == [(1,)]
        it.server.words = lambda tokens: "words"
        it.known("vllm", "2")
        assert await it.read((1,)) == ["words"]


async def test_a_server_that_was_started_again_is_asked_again():
    async with stage() as it:
        await it.read((1,))
        it.server.words = lambda tokens: "other words"
        it.reader.forget()
        assert await it.read((1,)) == ["other words"]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_has_too_much_to_do_is_left_alone_for_a_while(status):
    async with stage() as it:
        words, it.server.words, it.server.wordless = it.server.words, None, status
        it.reader.of((1,))
        await until(lambda: "soon" in it.reader.unknown)
        it.server.words = words
        for _ in range(5):
            it.reader.of((1,))
            await asyncio.sleep(0.01)
        assert it.asked == [(1,)]
        it.clock.now += prefix_reader.REST
        assert await it.read((1,)) == ["<1>"]


async def test_ids_that_it_does_not_know_cost_no_others_their_text():
    async with stage() as it:
        words, it.server.words, it.server.wordless = it.server.words, None, 400
        it.reader.of((1,))
        await until(lambda: (1,) in it.reader._texts)
        it.server.words = words
        assert await it.read((2,)) == ["<2>"]
        assert it.reader.of((1,)) == ""
        assert it.asked == [(1,), (2,)]


@pytest.mark.parametrize("answer", [None, 7, ["a"], {"a": 1}])
async def test_an_answer_without_a_text_is_the_last(answer):
    async with stage() as it:
        it.server.words = lambda tokens: answer
        it.reader.of((1,))
        await until(lambda: "no text" in it.reader.unknown)
        it.reader.of((2,))
        await asyncio.sleep(0.02)
        assert it.asked == [(1,)]


async def test_long_texts_are_cut_and_endless_ones_are_not_read():
    async with stage() as it:
        it.server.words = lambda tokens: "x" * tokens[0]
        assert await it.read((3_000,)) == ["x" * prefix_reader.MOST_CHARACTERS]
        it.reader.of((prefix_reader.MOST_BYTES,))
        await until(lambda: "soon" in it.reader.unknown)


async def test_a_kind_of_server_that_has_no_way_is_never_asked():
    async with stage("tgi") as it:
        it.reader.of((1,))
        await asyncio.sleep(0.02)
        assert "nothing is known" in it.reader.unknown
        assert it.server.asked == []


async def test_what_is_asked_of_one_server_is_no_answer_of_the_next(monkeypatch):
    ask = Http.post

    async def slow(http, *told):
        answer = await ask(http, *told)
        it.known("vllm", "2")  # while it answered
        monkeypatch.setattr(Http, "post", ask)
        it.server.words = lambda tokens: "of the next"
        return answer

    async with stage() as it:
        monkeypatch.setattr(Http, "post", slow)
        assert await it.read((1,)) == ["of the next"]
