"""The hits of caches of every size against caches of these sizes."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

import pytest
from hypothesis import given
from made_sessions import BLOCK_SIZE, HEADER, block_sessions, blocks

from loadgen.inspection.cache_size import CacheCurve, CachePoint
from loadgen.inspection.columns import ColumnReader
from loadgen.inspection.hit_rate import IdealHits
from loadgen.traces.model import Session


def curve_of(sessions: Sequence[Session], capacity: int) -> tuple[CachePoint, ...]:
    curve, hits, reader = CacheCurve(capacity), IdealHits((BLOCK_SIZE,)), ColumnReader(HEADER)
    for at in range(0, len(sessions), 7):
        prompts = reader.read(sessions[at : at + 7]).blocks
        curve.take(prompts)
        hits.take(prompts)
    return curve.points(hits.pieces - hits.new_pieces.total)


def beginnings(sessions: Sequence[Session]) -> list[list[int]]:
    """A number for each block of each prompt, that of the same block after the same ones."""
    known: dict[tuple[int, int], int] = {}
    prompts = []
    for session in sessions:
        ids = session.turns[0].hash_ids
        assert isinstance(ids, tuple)
        prompt = [-1]
        for hash_id in ids:
            prompt.append(known.setdefault((prompt[-1], hash_id), len(known)))
        prompts.append(prompt[1:])
    return prompts


def lru(prompts: Sequence[Sequence[int]], size: int) -> float:
    """The share of blocks that a cache finds which forgets what came least recently, ends of prompts first."""
    cache: OrderedDict[int, None] = OrderedDict()
    found = blocks = 0
    for prompt in prompts:
        blocks += len(prompt)
        for block in prompt:
            if block not in cache:
                break
            found += 1
        for block in reversed(prompt):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > size:
            cache.popitem(last=False)
    return found / blocks


@given(block_sessions())
def test_each_size_finds_what_a_cache_of_that_size_finds(sessions: list[Session]) -> None:
    # Ends of blocks are as good as whole ones to a curve of blocks, so they are made whole.
    whole = [blocks(len(ids) * BLOCK_SIZE, ids) for session in sessions if (ids := session.turns[0].hash_ids)]
    points, prompts = curve_of(whole, 10_000), beginnings(whole)
    for point in points:
        assert point.found == pytest.approx(lru(prompts, point.blocks))
    if points:
        assert points[-1].found == pytest.approx(lru(prompts, 10_000))
    else:
        assert lru(prompts, 10_000) == 0


def chains(count: int) -> list[Session]:
    """Many conversations that go on, at random; all have the first two blocks in common."""
    random_ = random.Random(3)
    depth = dict.fromkeys(range(200), 2)
    sessions = []
    for _ in range(count):
        chosen = min(int(random_.expovariate(0.02)), 199)
        depth[chosen] += 2
        ids = [1, 2, *(1000 * (chosen + 1) + at for at in range(depth[chosen]))]
        sessions.append(blocks(len(ids) * BLOCK_SIZE, ids))
    return sessions


def test_a_sample_tells_each_size_to_a_few_hundredths() -> None:
    sessions = chains(3000)
    points, prompts = curve_of(sessions, 1000), beginnings(sessions)
    assert points[-1].found == pytest.approx(lru(prompts, 10**9))
    for point in points:
        assert point.found == pytest.approx(lru(prompts, point.blocks), abs=0.03)


def test_nothing_comes_again() -> None:
    assert curve_of([blocks(8, (1, 2)), blocks(8, (3, 4))], 100) == ()
    assert CacheCurve().points(0) == ()
