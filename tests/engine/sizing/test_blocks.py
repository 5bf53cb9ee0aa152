"""Block arithmetic against counting slot by slot."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.sizing.blocks import Lengths, Sharing, at_end, block_size_costs, own_blocks, while_running

requests = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 80)), min_size=1, max_size=8).map(tuple)
block_sizes = st.integers(1, 64)


def held(tokens: int, block_size: int) -> int:
    """Blocks of a request, taken one by one as its tokens come."""
    blocks = 0
    for token in range(tokens):
        blocks += token % block_size == 0
    return blocks


@given(requests, block_sizes)
def test_at_the_end(pairs: tuple[tuple[int, int], ...], block_size: int) -> None:
    usage = at_end(Lengths(pairs, typical=False), block_size)
    assert usage.blocks * len(pairs) == sum(held(prompt + output, block_size) for prompt, output in pairs)
    assert 0 <= usage.empty < block_size
    assert usage.empty == usage.fragmentation * usage.tokens


@given(requests, block_sizes)
def test_at_the_decode_steps(pairs: tuple[tuple[int, int], ...], block_size: int) -> None:
    lengths = Lengths(pairs, typical=False)
    steps = [prompt + step for prompt, output in pairs for step in range(1, output + 1)]
    usage = while_running(lengths, block_size)
    if not steps:
        assert usage == at_end(lengths, block_size)
        return
    assert usage.tokens == Fraction(sum(steps), len(steps))
    assert usage.blocks == Fraction(sum(held(tokens, block_size) for tokens in steps), len(steps))
    assert usage.blocks <= own_blocks(lengths, block_size)


@given(st.integers(64, 300), st.integers(1, 40), block_sizes)
def test_a_typical_pair_is_the_mean_of_all_ends_of_a_block(prompt: int, output: int, block_size: int) -> None:
    around = [while_running(Lengths(((prompt + shift, output),), False), block_size) for shift in range(block_size)]
    empty = sum(usage.empty for usage in around) / block_size
    assert while_running(Lengths(((prompt, output),), True), block_size).empty == empty == Fraction(block_size - 1, 2)


@given(requests, block_sizes, st.integers(1, 200))
def test_own_blocks_and_the_prefix_make_the_whole(
    pairs: tuple[tuple[int, int], ...], block_size: int, shared: int
) -> None:
    pairs = tuple((prompt + shared, output) for prompt, output in pairs)  # each goes on after the prefix
    lengths = Lengths(pairs, typical=False)
    assert own_blocks(lengths, block_size) == own_blocks(lengths, block_size, shared) + shared // block_size
    assert own_blocks(lengths, block_size, shared) > 0


@given(st.integers(1, 1000), st.integers(1, 3000), block_sizes)
def test_sharing_loses_no_token(sessions: int, tokens: int, block_size: int) -> None:
    sharing = Sharing(sessions, tokens, block_size)
    assert sharing.shared_blocks * block_size + sharing.left_over == tokens
    assert tokens <= sharing.tokens_shared <= sharing.tokens_apart
    assert Sharing(1, tokens, block_size).tokens_shared == tokens


@given(requests, st.integers(128, 10**6), st.integers(1, 100), st.integers(1, 256))
def test_larger_blocks_trade_table_for_tail(
    pairs: tuple[tuple[int, int], ...], kv_bytes: int, layers: int, lookup: int
) -> None:
    costs = block_size_costs(Lengths(pairs, typical=False), kv_bytes, layers, lookup)
    assert [cost.block_size for cost in costs] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert costs[0].fragmentation == 0
    assert all(a.table >= b.table for a, b in pairwise(costs))
    assert all(a.empty_slots <= b.empty_slots for a, b in pairwise(costs))


def test_the_costs_of_one_size() -> None:
    (cost,) = [c for c in block_size_costs(Lengths(((70, 0),), False), 1000, 10, 64) if c.block_size == 16]
    assert (cost.entries, cost.lookups, cost.empty_slots) == (5, 50, 10)
    assert cost.fragmentation == 10 / 70
    assert cost.table == 5 * (4 + 10 * 64) / (70 * 1000)
