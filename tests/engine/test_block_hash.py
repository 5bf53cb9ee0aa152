from hypothesis import given
from hypothesis import strategies as st

from engine.block_hash import ROOT, chain_hash, extend_hashes


def test_the_same_block_after_another_prefix_has_another_name():
    # Trap 4.
    parent, other = chain_hash(ROOT, [1, 2]), chain_hash(ROOT, [2, 1])
    assert chain_hash(parent, [3, 4]) != chain_hash(other, [3, 4])


def test_token_boundaries_are_part_of_the_name():
    assert chain_hash(ROOT, [1, 256]) != chain_hash(ROOT, [257, 0])
    assert chain_hash(ROOT, [1]) != chain_hash(ROOT, [1, 0])


@given(st.lists(st.integers(0, 200_000), max_size=60), st.integers(1, 8), st.integers(0, 60))
def test_hashes_grow_with_the_tokens_and_never_change(tokens, block_size, cut):
    early = extend_hashes([], tokens[:cut], block_size)
    whole = extend_hashes([], tokens, block_size)
    assert extend_hashes(list(early), tokens, block_size) == whole
    assert len(whole) == len(tokens) // block_size
