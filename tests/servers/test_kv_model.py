"""The tree against a cache driven by chance: in any encoding, out of order, late, with losses and restarts."""

import json
import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from servers.kv_events import BlockHash, Heard, Missed, Restarted, decode, from_builtins, to_builtins
from servers.kv_tree import KvTree, Run
from tests.servers.kv_publisher import ENCODINGS, PrefixCache, encode

MEDIA = ((None,), ("GPU",), ("GPU", "CPU"), ("GPU", "CPU", "STORAGE"))

# What a run is, but for tokens and times: first, last, blocks, depth, before, below, children, above, medium.
Shape = tuple[BlockHash, BlockHash, int, int, int, int, int, str, str | None]


def shape(run: Run) -> Shape:
    return (
        *(run.first, run.last, run.blocks, run.depth, run.before),
        *(run.below, run.children, run.above, run.medium),
    )


def expected(cache: PrefixCache) -> list[Shape]:
    """The runs of a cache, found from its blocks and their parents alone."""
    children: dict[BlockHash | None, list[BlockHash]] = {}
    for one in cache.media:
        children.setdefault(cache.parents[one], []).append(one)

    def medium(one: BlockHash) -> str | None:
        return "+".join(sorted(name for name in cache.media[one] if name is not None)) or None

    def size(one: BlockHash) -> int:
        return 1 + sum(map(size, children.get(one, ())))

    def walk(first: BlockHash, depth: int, before: int, above: str) -> Iterator[Shape]:
        last, blocks = first, 1
        while len(children.get(last, ())) == 1 and medium(children[last][0]) == medium(first):
            last, blocks = children[last][0], blocks + 1
        after = children.get(last, [])
        yield (first, last, blocks, depth, before, sum(map(size, after)), len(after), above, medium(first))
        for child in after:
            yield from walk(child, depth + 1, before + 4 * blocks, "block")

    out: list[Shape] = []
    for parent, roots in children.items():
        if parent is None or parent not in cache.media:
            above = "start" if parent is None else "removed" if parent in cache.evicted else "unseen"
            for root in roots:
                out += walk(root, 0, 0, above)
    return out


def sorted_shapes(shapes: list[Shape]) -> list[Shape]:
    return sorted(shapes, key=repr)


def check_order(runs: list[Run]) -> None:
    """Depth first, and of those beside each other the largest first."""
    stack: list[Run] = []
    for run in runs:
        assert run.depth <= len(stack)
        if run.depth < len(stack):
            assert stack[run.depth].total >= run.total
        stack[run.depth :] = [run]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    media=st.sampled_from(MEDIA),
    leaves_first=st.booleans(),
    one_by_one=st.booleans(),
    steps=st.integers(1, 40),
)
def test_the_tree_is_the_cache_after_every_batch(seed, media, leaves_first, one_by_one, steps):
    chance = random.Random(seed)
    cache, tree, number = PrefixCache(chance, media), KvTree(), 0
    for _ in range(steps):
        events = cache.step(leaves_first)
        for batch in [[event] for event in events] if one_by_one else [events]:
            message = Heard(number, decode(encode(batch, chance.choice(ENCODINGS), float(number))))
            tree.take(message)
            tree.keep_openings(message)
            number += 1
        runs = list(tree.runs())
        assert set(tree.hashes()) == set(cache.media)
        assert tree.resident == len(cache.media) == sum(run.blocks for run in runs)
        assert tree.tokens == 4 * len(cache.media)
        assert sum(tree.media.values()) == sum(map(len, cache.media.values()))
        assert sorted_shapes([shape(run) for run in runs]) == sorted_shapes(expected(cache))
        openings = [tree.opening(run, 4 * run.blocks) for run in runs]
        assert [opening[:4] for opening in openings] == [cache.kept[run.first] for run in runs]
        assert [opening[-4:] for opening in openings] == [cache.kept[run.last] for run in runs]
        check_order(runs)
        if chance.random() < 0.1:
            tree = tree.copy()
    assert tree.complete
    assert tree.churn.unknown_removals == 0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    media=st.sampled_from(MEDIA),
    skipped=st.integers(0, 20),
    losses=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
    steps=st.integers(1, 50),
)
def test_late_and_lossy_streams_never_claim_more_than_they_know(seed, media, skipped, losses, steps):
    """Through a recording and back, and now and then through a state: what is folded from there on is the same."""
    chance = random.Random(seed)
    cache, tree, again, number = PrefixCache(chance, media), KvTree(), KvTree(), 0
    for step in range(skipped + steps):
        if chance.random() < 0.03:
            cache, number = PrefixCache(chance, media), 0
            messages = [Restarted()] if step >= skipped else []
        else:
            payload = encode(cache.step(False), chance.choice(ENCODINGS), float(number))
            lost = chance.random() < losses
            messages = [Missed(number, number) if lost else Heard(number, decode(payload))] if step >= skipped else []
            number += 1
        for message in messages:
            tree.take(message)
            again.take(from_builtins(json.loads(json.dumps(to_builtins(message)))))
        if chance.random() < 0.2:
            again = KvTree.from_state(json.loads(json.dumps(again.to_state())))
        if tree.complete:
            assert set(tree.hashes()) == set(cache.media)
            assert sorted_shapes([shape(run) for run in tree.runs()]) == sorted_shapes(expected(cache))
        if tree.doubtful_since is None:
            assert set(tree.hashes()) <= set(cache.media)
    assert [shape(run) for run in again.runs()] == [shape(run) for run in tree.runs()]
    assert (again.churn, again.complete, again.late, again.media) == (tree.churn, tree.complete, tree.late, tree.media)
