"""The event parser against every way the network may cut a stream."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sse import EventParser

STREAM = (
    ': hello\r\n\r\ndata: {"a": "äöü 🌍"}\r\n\r\nevent: x\ndata:one\ndata: two\n\ndata\r\rid: 3\n\ndata: [DONE]\n\n'
).encode()
EVENTS = ['{"a": "äöü 🌍"}'.encode(), b"one\ntwo", b"", b"[DONE]"]


def test_whole_stream() -> None:
    assert EventParser().feed(STREAM) == EVENTS


def test_byte_by_byte() -> None:
    parser = EventParser()
    assert [event for i in range(len(STREAM)) for event in parser.feed(STREAM[i : i + 1])] == EVENTS
    assert not parser.pending


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split(cuts: list[int]) -> None:
    parser = EventParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [e for a, b in pairwise(edges) for e in parser.feed(STREAM[a:b])]
    assert events == EVENTS


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")), st.integers(1, 5))
def test_text_survives_splits(text: str, size: int) -> None:
    stream = f"data: {text}\n\n".encode()
    parser = EventParser()
    events = [e for i in range(0, len(stream), size) for e in parser.feed(stream[i : i + size])]
    assert events == [text.encode()]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends_and_byte_order_mark(newline: str) -> None:
    stream = "\ufeff" + newline.join(["data: a", "data: b", "", "data: c", "", ""])
    assert EventParser().feed((stream + ":x").encode()) == [b"a\nb", b"c"]


def test_an_unfinished_event_is_not_given() -> None:
    parser = EventParser()
    assert parser.feed(b"data: half\n") == []
    assert parser.pending
