"""The ideal hit rate against a cache of tokens that forgets nothing, and its estimates against the exact figure."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_sessions import BLOCK_SIZE, HEADER, PIECE, PIECE_TOKENS, block_sessions, blocks, chat, chat_sessions
from msgspec import UNSET

from loadgen.inspection.columns import ColumnReader, batches
from loadgen.inspection.hit_rate import HitRate, IdealHits, KnownPieces, ideal_hits
from loadgen.traces.formats import open_trace
from loadgen.traces.model import Asked, Session, Turn

SIZES = (1, 2, 3, 4, 5, 7, 8, 16)


def oracle(prompts: Sequence[tuple[Sequence[Hashable], Sequence[Hashable]]], block_size: int) -> tuple[int, int]:
    """Tokens found and asked for, of (prompt, answer) as tokens, by a set of full blocks with what is before them."""
    cached: set[tuple[Hashable, ...]] = set()
    found = asked = 0
    for prompt, answer in prompts:
        asked += len(prompt)
        blocks = 0
        while (blocks + 1) * block_size < len(prompt) and tuple(prompt[: (blocks + 1) * block_size]) in cached:
            blocks += 1
        found += blocks * block_size
        computed = [*prompt, *answer[:-1]]
        cached |= {tuple(computed[:end]) for end in range(block_size, len(computed) + 1, block_size)}
    return found, asked


def tokens_of_blocks(session: Session) -> list[Hashable]:
    """A token is where it is in its block, and the block is its id after those before it."""
    turn = session.turns[0]
    assert turn.input_tokens is not UNSET
    assert turn.hash_ids is not UNSET
    return [(turn.hash_ids[: at // BLOCK_SIZE + 1], at % BLOCK_SIZE) for at in range(turn.input_tokens)]


def tokens_of_chat(session: Session) -> Iterator[tuple[list[Hashable], list[Hashable]]]:
    """Every turn's prompt and answer; a token of a text is the text up to the end of its piece, and its place in it."""
    made: list[tuple[list[Hashable], list[Hashable]]] = []
    for index, turn in enumerate(session.turns):
        assert turn.output_tokens is not UNSET
        answer: list[Hashable] = [(session.session, index, at) for at in range(turn.output_tokens)]
        if turn.regenerates is not UNSET:
            prompt = made[turn.regenerates][0]
        else:
            parent = (index - 1 if index else None) if turn.parent is UNSET else turn.parent
            system = HEADER.systems[session.system] if session.system else ""
            before = text_tokens(system, len(system) // 4) if parent is None else [*made[parent][0], *made[parent][1]]
            assert turn.user is not UNSET
            prompt = [*before, *text_tokens(turn.user, len(turn.user) * PIECE_TOKENS // PIECE)]
        made.append((prompt, answer))
    yield from made


def text_tokens(text: str, tokens: int) -> list[Hashable]:
    return [(text[: (at // PIECE_TOKENS + 1) * PIECE], at) for at in range(tokens)]


@given(block_sessions())
def test_blocks_are_found_as_a_cache_of_tokens_finds_them(sessions: list[Session]) -> None:
    prompts: list[tuple[list[Hashable], list[Hashable]]] = [(tokens_of_blocks(session), []) for session in sessions]
    for rate in ideal_hits(sessions, HEADER, SIZES):
        assert (rate.found_tokens, rate.input_tokens) == oracle(prompts, rate.block_size)
        assert rate.standard_error == 0


@given(chat_sessions())
def test_texts_are_found_as_a_cache_of_tokens_finds_them(sessions: list[Session]) -> None:
    prompts = [turn for session in sessions for turn in tokens_of_chat(session)]
    for rate in ideal_hits(sessions, HEADER, SIZES):
        assert (rate.found_tokens, rate.input_tokens) == oracle(prompts, rate.block_size)


@given(block_sessions(), st.integers(1, 4))
def test_batches_change_nothing(sessions: list[Session], size: int) -> None:
    hits, reader = IdealHits(SIZES), ColumnReader(HEADER)
    for at in range(0, len(sessions), size):
        hits.take(reader.read(sessions[at : at + size]).blocks)
    assert hits.rates() == ideal_hits(sessions, HEADER, SIZES)


def test_one_token_of_each_prompt_is_computed() -> None:
    rate = ideal_hits([blocks(8, (1, 2)), blocks(8, (1, 2))], HEADER, (4,))[0]
    assert rate.found_tokens == 4


def test_equal_ids_after_different_beginnings_are_not_the_same_text() -> None:
    sessions = [blocks(8, (1, 2)), blocks(8, (3, 4)), blocks(9, (1, 4, 5))]
    assert ideal_hits(sessions, HEADER, (4,))[0].found_tokens == 4


def test_a_prompt_finds_the_beginning_of_a_block_that_another_cut_short() -> None:
    assert ideal_hits([blocks(7, (1, 2)), blocks(9, (1, 2, 3))], HEADER, (1,))[0].found_tokens == 7
    assert ideal_hits([blocks(9, (1, 2, 3)), blocks(7, (1, 2))], HEADER, (1,))[0].found_tokens == 6


def test_lengths_alone_share_nothing() -> None:
    sessions = [chat(Turn(input_tokens=100, output_tokens=1), name=name) for name in "ab"]
    assert ideal_hits(sessions, HEADER, (4,)) == (HitRate(4, 0, 200),)


def test_requests_written_out_share_their_first_messages() -> None:
    def asks(text: str) -> Session:
        messages = [{"role": "system", "content": "s" * 640}, {"role": "user", "content": text}]
        body = {"messages": messages}
        return chat(Turn(request=Asked("/v1/chat/completions", body)))

    assert ideal_hits([asks("x" * 64), asks("y" * 64)], HEADER, (16,))[0] == HitRate(16, 160, 352)


def test_ids_beyond_64_bits_are_told_apart_by_their_lower_ones() -> None:
    sessions = [blocks(5, (2**64 + 1, 7)), blocks(5, (1, 8)), blocks(5, (2**70 + 2, 9))]
    assert ideal_hits(sessions, HEADER, (4,))[0].found_tokens == 4


def test_no_prompt_is_a_rate_of_0() -> None:
    assert IdealHits((16,)).rates()[0].rate == 0


@pytest.mark.parametrize("sizes", [(), (0,), (16, -1)])
def test_a_block_size_below_1_is_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        IdealHits(sizes)


def random_sessions(count: int) -> list[Session]:
    """Chains from few beginnings: half of the blocks or so come again."""
    random_ = random.Random(7)
    sessions = []
    for number in range(count):
        depth = random_.randrange(1, 30)
        shared = random_.randrange(depth)
        start = random_.randrange(20)
        ids = [start * 100 + at if at < shared else 10_000 + number * 100 + at for at in range(depth)]
        sessions.append(blocks(depth * BLOCK_SIZE - random_.randrange(BLOCK_SIZE), ids, name=str(number)))
    return sessions


@pytest.mark.parametrize("capacity", [100, 1000, 5000])
def test_what_a_sample_tells_is_within_its_error(capacity: int) -> None:
    sessions = random_sessions(3000)
    exact = ideal_hits(sessions, HEADER, (2, 4))
    hits, reader = IdealHits((2, 4), capacity), ColumnReader(HEADER)
    for at in range(0, len(sessions), 100):
        hits.take(reader.read(sessions[at : at + 100]).blocks)
    for estimate, true in zip(hits.rates(), exact, strict=True):
        assert 0 < estimate.rate_error < 0.5 / capacity**0.5
        assert abs(estimate.rate - true.rate) < 4 * estimate.rate_error


def test_it_is_exact_until_more_pieces_are_known_than_are_kept() -> None:
    sessions = random_sessions(100)
    reader = ColumnReader(HEADER)
    prompts = reader.read(sessions).blocks
    all_kept = IdealHits((4,), 10_000)
    all_kept.take(prompts)
    just_kept = IdealHits((4,), all_kept.new_pieces.total)
    just_kept.take(prompts)
    assert just_kept.rates() == all_kept.rates()
    assert just_kept.new_pieces.standard_error == 0


def test_memory_does_not_grow_with_the_trace() -> None:
    hits, reader = IdealHits((4,), 500), ColumnReader(HEADER)
    for at in range(50):
        prompts = reader.read([blocks(40, range(at * 1000 + i * 10, at * 1000 + i * 10 + 10)) for i in range(20)])
        hits.take(prompts.blocks)
        assert len(hits._known) <= 500
    assert hits.rates()[0].rate == pytest.approx(0, abs=4 * hits.rates()[0].rate_error)


def test_known_pieces_keep_the_longest_beginning() -> None:
    known = KnownPieces()
    assert known.look_up([1, 2], 3) == (0, 0)
    assert known.look_up([1, 2], 1) == (2, 0)
    assert known.look_up([1, 2], 5) == (1, 3)
    assert known.look_up([1, 2, 4], 0) == (1, 5)
    assert known.look_up([1, 2, 4], 0) == (3, 0)
    assert len(known) == 3


def test_mooncakes_known_figures(mooncake: Path) -> None:
    trace = open_trace(mooncake)
    hits, reader = IdealHits((16, 512)), ColumnReader(trace.header)
    requests = 0
    for batch in batches(trace.sessions()):
        prompts = reader.read(batch).blocks
        requests += len(prompts.tokens)
        hits.take(prompts)
    assert requests == 12_031
    assert 1 - hits.new_pieces.total / hits.pieces == pytest.approx(0.366, abs=0.0005)
    assert [round(rate.rate, 4) for rate in hits.rates()] == [0.3736, 0.3734]  # by tokens of full blocks
