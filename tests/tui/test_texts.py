"""The reader of texts keeps what is selected, pays for what is new, and says why it knows no more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from engine.protocol import BlockText, RequestText
from tui.engine_api import Missing, NotAnEngine, Unreachable
from tui.texts import EVERY, NO_SOURCE, TextReader, Texts

FOREIGN = NotAnEngine("not with a text")


@dataclass
class Talker:
    """An engine with requests that grow; `asked` is what it was asked, `failure` what it raises next."""

    requests: dict[str, list[int]] = field(default_factory=dict)
    blocks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    prompt_tokens: int = 2
    seq: int = 1
    beams: bool = False
    failure: Exception | None = None
    asked: list[object] = field(default_factory=list)

    async def request_text(self, request: str, first: int) -> RequestText:
        self.asked.append((request, first))
        if self.failure:
            raise self.failure
        if request not in self.requests:
            raise Missing(f"request {request} has ended")
        self.seq += 1
        tokens = self.requests[request]
        first = min(first, self.prompt_tokens if self.beams else len(tokens))
        return RequestText(self.seq, request, self.prompt_tokens, first, tuple(tokens[first:]), texts(tokens[first:]))

    async def block_text(self, block: int) -> BlockText:
        self.asked.append(block)
        if self.failure:
            raise self.failure
        if block not in self.blocks:
            raise Missing(f"there is no block {block}")
        return BlockText(self.seq, block, "ab", None, self.blocks[block], texts(self.blocks[block]))


def texts(tokens):
    return tuple(f"<{token}>" for token in tokens)


class Stage:
    """A talker, a reader of it, and the time."""

    def __init__(self, **talker):
        self.talker = Talker(**talker)
        self.now = 100.0
        self.reader = TextReader(lambda: self.talker, lambda: self.now)

    async def read(self, request=None, block=None):
        self.now += EVERY
        await self.reader.read(request, block)
        return self.reader.texts


async def test_a_request_is_put_together_from_what_is_new():
    stage = Stage(requests={"a": [1, 2, 3]})
    await stage.read("a")
    stage.talker.requests["a"] += [4, 5]
    await stage.read("a")
    found = (await stage.read("a")).requests["a"]
    assert stage.talker.asked == [("a", 0), ("a", 3), ("a", 5)]
    assert found == RequestText(4, "a", 2, 0, (1, 2, 3, 4, 5), texts([1, 2, 3, 4, 5]))


async def test_nothing_is_asked_twice_within_a_moment_and_a_new_selection_at_once():
    stage = Stage(requests={"a": [1, 2], "b": [3]}, blocks={7: (1, 2)})
    await stage.read("a")
    stage.now += EVERY * 0.9
    await stage.reader.read("a", None)
    assert stage.talker.asked == [("a", 0)]
    await stage.reader.read("b", None)
    await stage.reader.read("b", 7)
    assert stage.talker.asked == [("a", 0), ("b", 0), ("b", 1), 7]


async def test_only_what_is_selected_is_kept():
    stage = Stage(requests={"a": [1, 2], "b": [3]}, blocks={7: (1, 2), 8: ()})
    assert set((await stage.read("a", 7)).requests) == {"a"}
    found = await stage.read("b", 8)
    assert (set(found.requests), set(found.blocks)) == ({"b"}, {8})
    assert (await stage.read("b")).blocks == {}
    assert await stage.read() == Texts()
    count = len(stage.talker.asked)
    await stage.read()
    assert len(stage.talker.asked) == count


@pytest.mark.parametrize("shorter", [[1, 9], [8]])
async def test_fewer_tokens_than_before_are_read_anew(shorter):
    stage = Stage(requests={"a": [1, 2, 3, 4]}, prompt_tokens=1)
    await stage.read("a")
    stage.talker.requests["a"] = shorter
    assert (await stage.read("a")).requests["a"].tokens == tuple(shorter)


@pytest.mark.parametrize("changes", [{"prompt_tokens": 3}, {"seq": -9}])
async def test_another_request_of_that_name_is_read_anew(changes):
    stage = Stage(requests={"a": [1, 2, 3]})
    await stage.read("a")
    stage.talker.requests["a"] = [7, 8, 9, 10]
    for name, value in changes.items():
        setattr(stage.talker, name, value)
    assert (await stage.read("a")).requests["a"].tokens == (7, 8, 9, 10)


async def test_what_a_beam_generated_may_be_others():
    stage = Stage(requests={"a": [1, 2, 3, 4]}, beams=True)
    await stage.read("a")
    stage.talker.requests["a"] = [1, 2, 5, 6, 7]
    found = (await stage.read("a")).requests["a"]
    assert (found.first, found.tokens, found.texts) == (0, (1, 2, 5, 6, 7), texts([1, 2, 5, 6, 7]))
    assert stage.talker.asked == [("a", 0), ("a", 4)]


@pytest.mark.parametrize("failure", [Unreachable("nothing answers there"), Missing("request a has ended"), FOREIGN])
async def test_what_was_told_stays_when_no_more_is(failure):
    stage = Stage(requests={"a": [1, 2]}, blocks={7: (1, 2)})
    before = await stage.read("a", 7)
    stage.talker.failure = failure
    found = await stage.read("a", 7)
    assert (found.requests, found.blocks, found.unknown) == (before.requests, before.blocks, str(failure))
    stage.talker.failure = None
    stage.talker.requests["a"].append(3)
    found = await stage.read("a", 7)
    assert (found.requests["a"].tokens, found.unknown) == ((1, 2, 3), "")


async def test_why_there_is_none_is_of_what_is_selected():
    stage = Stage(requests={"b": [1]})
    assert (await stage.read("a")).unknown == "request a has ended"
    assert await stage.read() == Texts()
    assert (await stage.read("b", 3)).unknown == "there is no block 3"
    assert (await stage.read("b")).unknown == ""


async def test_a_recording_has_none():
    reader = TextReader(lambda: None, lambda: 5.0)
    await reader.read("a", 3)
    assert reader.texts == Texts(unknown=NO_SOURCE)


async def test_an_answer_that_comes_after_another_was_selected_is_dropped():
    stage = Stage(requests={"a": [1, 2], "b": [3]}, blocks={7: (1, 2)})
    answer, come = stage.talker.request_text, asyncio.Event()

    async def late(request, first):
        told = await answer(request, first)
        if request == "a":
            await come.wait()
        return told

    stage.talker.request_text = late
    reading = asyncio.create_task(stage.reader.read("a", 7))
    await asyncio.sleep(0)
    await stage.reader.read("b", None)
    come.set()
    await reading
    assert (set(stage.reader.texts.requests), set(stage.reader.texts.blocks)) == ({"b"}, set())


async def test_glances_read_one_block_at_a_time_again_when_it_has_changed_and_keep_no_other():
    stage = Stage(blocks={1: (5,), 2: (6,), 3: (7,)})
    for _ in range(4):
        await stage.reader.glance({1: 0, 2: 0})
    assert stage.talker.asked == [1, 2]
    assert set(stage.reader.texts.blocks) == {1, 2}
    stage.talker.blocks[1] = (9,)
    stage.talker.seq = 8
    await stage.reader.glance({1: 4, 3: 0})
    assert stage.reader.texts.blocks[1].tokens == (9,)
    await stage.reader.glance({1: 4, 3: 0})
    assert stage.talker.asked == [1, 2, 1, 3]
    assert set(stage.reader.texts.blocks) == {1, 3}
    assert set((await stage.read(block=2)).blocks) == {1, 2, 3}
    stage.talker.failure = Unreachable("gone")
    await stage.reader.glance({4: 0})
    assert set(stage.reader.texts.blocks) == {2}
    assert stage.reader.texts.unknown == ""
