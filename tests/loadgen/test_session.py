"""One user against a golden server: what is reported of a turn, and when its slot is free again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from golden import GoldenServer, Script, Stall, Write, answer, done, role, text, usage, whole

from loadgen import client
from loadgen.asking import Asker
from loadgen.client import clock, open_http
from loadgen.limits import Budget
from loadgen.live.tally import Tally
from loadgen.outcome import Outcome, RequestRecord, TokenSource
from loadgen.pace import Pace
from loadgen.server import ServerFacts
from loadgen.session import Setting, run_session
from loadgen.settings import Settings
from loadgen.text.tokenizer import Tokenizer, TokenizerError
from loadgen.traces.model import Header, Session, Turn

Script_of = Callable[[dict[str, Any]], Script]


class User:
    """Plays a session with settings of a run that has one slot."""

    def __init__(self, url: str, http: Any, records: list[RequestRecord], **more: Any) -> None:
        settings = Settings(file="none.jsonl", probe=False, **more)
        now = clock()
        pace = Pace(1.0)
        pace.begin(now)
        self.records = records
        self.slots = asyncio.Semaphore(1)
        self.tally = Tally()
        self.setting = Setting(
            http=http,
            url=url,
            asker=Asker(Header("paged-top-chat", 2), ServerFacts(url=url, model="golden"), settings),
            pace=pace,
            timeout=30.0,
            retries=0,
            stream=settings.stream,
            slots=self.slots,
            budget=Budget(),
            tally=self.tally,
            zero=now,
            report=records.append,
            tokenizer=None,
        )

    async def play(self, turns: int = 1, tokenizer: Tokenizer | None = None, **recorded: Any) -> float:
        asked = tuple(Turn(user="Hi", **(recorded or {"output_tokens": 3})) for _ in range(turns))

        async def at_once() -> float:
            return clock()

        session = Session(session="s", arrival=0.0, turns=asked)
        return await run_session(session, 0, at_once, replace(self.setting, tokenizer=tokenizer))


@asynccontextmanager
async def user(script_of: Script_of, **more: Any) -> AsyncIterator[User]:
    async with GoldenServer(script_of) as server, open_http() as http:
        yield User(server.url, http, [], **more)


class Words:
    """Counts words, and notes whether the slot is free meanwhile."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self.free: list[bool] = []

    async def encode(self, text: str, *, special: bool) -> list[int]:
        return [0] * len(text.split())

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        return None

    async def count(self, texts: Sequence[str]) -> list[int]:
        self.free.append(not self._slots.locked())
        return [len(text.split()) for text in texts]


async def test_a_slot_is_free_while_the_answer_is_counted_and_the_session_over_with_its_answer() -> None:
    untold = Script([*answer(["a b c d"]).steps[:-2], done()])
    async with user(lambda _: untold) as one:
        words = Words(one.slots)
        over = await one.play(2, words)
    assert words.free == [True, True]
    assert [(record.output_tokens, record.token_source) for record in one.records] == [(4, TokenSource.TOKENIZER)] * 2
    assert one.records[-1].ended == pytest.approx(over - one.setting.zero, abs=1e-5)


class Silent(Words):
    """Counts nothing, as a server that has too much to do."""

    async def count(self, texts: Sequence[str]) -> list[int]:
        raise TokenizerError("POST http://server/tokenize: no answer in time")


async def test_an_answer_that_nobody_comes_to_count_is_told_by_its_chunks() -> None:
    untold = Script([*answer(["a b", "c d"]).steps[:-2], done()])
    async with user(lambda _: untold) as one:
        await one.play(2, Silent(one.slots))
    assert [(record.output_tokens, record.token_source) for record in one.records] == [(2, TokenSource.CHUNKS)] * 2


async def test_a_session_whose_replies_cannot_be_counted_fails_and_ends_no_run() -> None:
    async with user(lambda _: answer(["a"])) as one:
        await one.play(2, Silent(one.slots), reply="It was so.")
    first, second = one.records
    assert (first.outcome, second.outcome) == (Outcome.CONNECTION, Outcome.NOT_SENT)
    assert first.detail == ("its recorded replies cannot be counted: POST http://server/tokenize: no answer in time")
    assert second.detail == ""


async def test_an_answer_that_is_whole_has_its_usage_also_when_the_run_is_stopped_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_DRAIN_TIME", 3600.0)
    steps: list[Write | Stall] = [role(), text("a b c"), usage(7, 3), done(), Stall()]
    async with user(lambda _: Script(steps)) as one:
        playing = asyncio.create_task(one.play(2))
        while not one.tally.counts().chunks:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        playing.cancel()
        await asyncio.wait([playing])
    first, second = one.records
    assert (first.outcome, first.output_tokens, first.token_source) == (Outcome.COMPLETED, 3, TokenSource.USAGE)
    assert second.outcome is Outcome.NOT_REACHED
    assert not one.slots.locked()


async def test_without_streams_a_failure_has_no_ttft_to_miss() -> None:
    async with user(lambda _: Script(status=500, body={}), stream=False) as one:
        await one.play(2)
    assert [(record.outcome, record.streamed) for record in one.records] == [
        (Outcome.HTTP_ERROR, False),
        (Outcome.NOT_SENT, False),
    ]
    async with user(lambda _: whole("a b c"), stream=False) as one:
        await one.play()
    assert not one.records[0].streamed
    async with user(lambda _: answer(["a"]), stream=False) as one:  # whatever was asked for, it streams
        await one.play()
    assert one.records[0].streamed
