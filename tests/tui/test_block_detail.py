"""What is told of one block: in the inspector, and as the story of what happened to it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from engine.protocol import BlockText
from tui.focus import Focus, MapFocus
from tui.look import Look
from tui.map_paths import owners
from tui.panels import block_detail
from tui.panels.block_detail import block_events
from tui.panels.line import text_of
from tui.texts import Texts


@pytest.fixture(scope="module")
def busy(recording, fold, frame):
    return frame(fold(recording))


def told(frame, block, width=60, **changes):
    shown = replace(frame, focus=Focus(map=MapFocus(block=block)), **changes)
    title, lines = block_detail.detail(shown, width, Look())
    texts = [text_of(line) for line in lines]
    assert title == f"block {block:,}"
    assert max(map(len, texts)) <= width
    return "\n".join(texts)


def first(frame, references):
    return int(np.flatnonzero(frame.view.blocks.references == references)[0])


def test_the_inspector_tells_what_the_columns_have(busy):
    blocks = busy.view.blocks
    for block in (0, 7, 300, 360, 559, first(busy, 0), first(busy, 3)):
        shown = told(busy, block)
        assert f"references   {blocks.references[block]}\n" in shown
        assert f"filled       {blocks.filled[block]} of 16 slots\n" in shown
        assert f"last change  step {blocks.changed[block]}\n" in shown
        assert ("yes: it can be found in the cache" in shown) == bool(blocks.hashed[block])
        assert f"held by {blocks.references[block]} request" in shown


def test_owners_come_with_their_index_and_are_all_counted(busy):
    block = first(busy, 3)
    shown = told(busy, block)
    for request, index in owners(busy.view, block):
        assert busy.view.requests[request].table[index] == block
        assert f"{request.removeprefix('chatcmpl-')}[{index}]" in shown
    crowded = int(busy.view.blocks.references.argmax())
    narrow = told(busy, crowded, width=30)
    listed = narrow.count("[0]")
    assert f"held by {busy.view.blocks.references[crowded]} requests" in narrow
    assert f"and {busy.view.blocks.references[crowded] - listed} more" in narrow


def test_the_chain_before_a_block_is_its_table(busy):
    table = max((state.table for state in busy.view.requests.values()), key=len)
    shown = " ".join(told(busy, table[10]).split())
    assert f"10 blocks, the last 6: {' → '.join(map(str, table[4:10]))}" in shown
    assert "goes on from nothing: a table begins with it" in told(busy, table[0])


def test_what_was_before_the_screen_watched_is_not_made_up(recording, fold, frame):
    start = frame(fold([fold(recording).fold.to_snapshot()]))
    block = first(start, 1)
    shown = told(start, block)
    assert "taken        before this screen watched" in shown
    assert "last change  before this screen watched" in shown
    assert "taken before this screen watched" in block_detail.told(start.view, block)[0]


def test_tokens_are_wrapped_and_cleaned(busy):
    assert "not read yet" in told(busy, 7)
    unknown = told(busy, 7, texts=Texts(unknown="a recording holds no text"))
    assert "a recording holds no text" in unknown
    text = BlockText(
        seq=3, block=7, hash="ab12", parent_hash=None, tokens=(1, 2, 3), texts=("You are", " a\n模", " x" * 60)
    )
    shown = told(busy, 7, texts=Texts(blocks={7: text}))
    assert "You are a\\n? x x" in shown
    assert shown.count(" x") >= 60
    assert ("ab12" in shown) == bool(busy.view.blocks.hashed[7])
    assert "not read yet" in told(busy, 7, texts=Texts(blocks={8: text}))


def test_given_events_are_told_newest_first(busy):
    shown = told(busy, 7, block_events=((3, "taken by 0001[7]"), (1_204, "released by 0001 (stop)")))
    assert shown.index("step 1,204") < shown.index("step 3 ")
    assert "nothing in the records kept" in told(busy, first(busy, 1), block_events=())


def test_without_events_the_copies_of_the_steps_are_told(busy, recording):
    copy = recording[-1].copies[0]
    assert f"copied to block {copy.target} for " in told(busy, copy.source)
    assert f"copied from block {copy.source} for " in told(busy, copy.target)


def test_the_story_of_every_block_ends_as_the_pool_has_it(recording, busy):
    """Who took and shared it, less who released it, are its references; what was said last of its filling is so."""
    records, blocks = recording[1:], busy.view.blocks
    told_of = set()
    for block in range(0, 560, 3):
        story = block_events(records, block, 16)
        words = [text for _, text in story]
        joined = sum(text.startswith(("taken by", "shared with", "found in the cache")) for text in words)
        assert joined - sum(text.startswith("released by") for text in words) == blocks.references[block], block
        assert [seq for seq, _ in story] == sorted(seq for seq, _ in story)
        fills = [text for text in words if text.startswith("filled to")]
        if blocks.references[block] == 1 and fills and not words[-1].startswith("copied"):
            assert fills[-1].startswith(f"filled to {blocks.filled[block]}/16 "), block
        told_of |= {text.split(" ")[0] for text in words}
        told_of |= {"swapped" for text in words if "swapped out" in text}
    assert told_of >= {"taken", "shared", "found", "filled", "became", "hashed:", "released", "cached:", "evicted:",
                       "copied", "swapped"}  # fmt: skip


def test_a_story_told_from_later_on_says_less_but_the_same(recording):
    records = recording[1:]
    for block in (0, 7, 300, 360):
        whole, late = block_events(records, block, 16), block_events(records[150:], block, 16)
        known = {text for seq, text in whole if seq >= records[150].seq}
        unknown = {text for _, text in late} - known
        assert not {text for text in unknown if not text.startswith(("became full", "cached", "freed"))}, block


def test_filling_step_by_step_is_one_event(recording):
    for block in range(0, 560, 20):
        words = [text for _, text in block_events(recording[1:], block, 16)]
        for a, b in pairwise(words):
            assert not (a.startswith("filled") and b.startswith("filled") and a.split()[-1] == b.split()[-1])
