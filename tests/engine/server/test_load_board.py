"""What load generators told is kept for a moment: the last word of each, of so many."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import LoadLatency, LoadRun
from engine.server.load_board import MAX_LOADS, SILENCE, BoardFull, LoadBoard

RUN = LoadRun(
    label="replay", trace="chat500", elapsed=3.0, share=0.1, sessions=20, sessions_done=1, turns=90, due=12, queued=1,
    sent=11, in_flight=2, completed=8, failed=1, output_tokens=640, speed=20.0, ttft=LoadLatency(0.1, 0.3, 9),
    ttft_scheduled=LoadLatency(0.2, None, 9), tpot=LoadLatency(), e2e=LoadLatency(), e2e_scheduled=LoadLatency(),
)  # fmt: skip


class Hand:
    """A board, and a clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.board = LoadBoard(lambda: self.now)

    def ids(self) -> list[str]:
        return [load.id for load in self.board.live().loads]


def test_the_last_word_counts_in_the_order_of_the_first_ones() -> None:
    hand = Hand()
    hand.board.put("a", RUN)
    hand.board.put("b", RUN)
    hand.now += 2.5
    hand.board.put("a", msgspec.structs.replace(RUN, completed=9))
    a, b = hand.board.live().loads
    assert (a.id, a.age, a.run.completed) == ("a", 0.0, 9)
    assert (b.id, b.age, b.run.completed) == ("b", 2.5, 8)


def test_who_falls_silent_is_forgotten_and_who_says_so_at_once() -> None:
    hand = Hand()
    hand.board.put("a", RUN)
    hand.board.put("b", RUN)
    assert hand.board.drop("a")
    assert not hand.board.drop("a")
    hand.now += SILENCE
    assert hand.ids() == ["b"]
    hand.now += 0.001
    assert hand.ids() == []
    assert not hand.board.drop("b")


def test_one_more_than_are_kept_is_refused_until_one_is_gone() -> None:
    hand = Hand()
    for number in range(MAX_LOADS):
        hand.board.put(str(number), RUN)
    with pytest.raises(BoardFull):
        hand.board.put("more", RUN)
    hand.board.put("3", RUN)  # known already
    hand.now += SILENCE / 2
    hand.board.put("3", RUN)
    hand.now += SILENCE / 2 + 0.001
    hand.board.put("more", RUN)
    assert hand.ids() == ["3", "more"]


WORDS = st.tuples(st.sampled_from(["put", "drop", "live"]), st.sampled_from("abcdefghijklmnopqrstu"), st.floats(0, 4))


@given(st.lists(WORDS, max_size=80))
def test_it_is_the_words_of_the_last_seconds(words: list[tuple[str, str, float]]) -> None:
    hand = Hand()
    heard: dict[str, float] = {}
    for what, load, later in words:
        hand.now += later
        there = {name for name, at in heard.items() if hand.now - at <= SILENCE}
        if what == "put" and (load in there or len(there) < MAX_LOADS):
            hand.board.put(load, RUN)
            heard[load] = hand.now
        elif what == "put":
            with pytest.raises(BoardFull):
                hand.board.put(load, RUN)
        elif what == "drop":
            assert hand.board.drop(load) == (load in there)
            heard.pop(load, None)
        else:
            assert {one.id: one.age for one in hand.board.live().loads} == {
                name: pytest.approx(hand.now - heard[name], abs=0.001) for name in there
            }
