"""What is told of requests and blocks is what a device that keeps tokens in its slots has there."""

from __future__ import annotations

import random

import msgspec
import pytest

from engine.block_hash import ROOT, chain_hash, root_hash
from engine.contents import HASH_DIGITS, block_tokens, live_requests, request_tokens
from engine.core import EngineCore
from engine.messages import (
    BlockTokens,
    GetBlockTokens,
    GetRequestTokens,
    ListRequests,
    Reply,
    RequestTokens,
    Shutdown,
    Step,
)
from engine.protocol import Control, LiveRequests
from engine.request import Request, RequestTooLarge
from engine.sampling_params import BeamParams, SchedulingParams
from tests.engine.loops import Talk, loop_of
from tests.engine.mirror import MirrorRunner, greedy, mirror_core


def check_blocks(core: EngineCore, seen: set[str]) -> None:
    """Every block's tokens are those of its owners' tables, and those in the device's slots."""
    pool, size, runner = core.pool, core.info.block_size, core.runner
    assert isinstance(runner, MirrorRunner)
    owners: dict[int, list[tuple[Request, int]]] = {}
    for request in core.scheduler.requests.values():
        for index, block in enumerate(request.table):
            owners.setdefault(block, []).append((request, index))
    for block in range(pool.num_blocks):
        found, state = block_tokens(core.scheduler, block, before=5), pool.block(block)
        tokens = list(found.part.tokens)
        if state.state == "free":
            assert (tokens, found.hash, found.parent_hash) == ([], None, None)
            continue
        assert len(tokens) == state.filled
        assert tokens == runner.slots[block * size :][: state.filled]
        assert (found.hash is not None) == state.hashed
        for request, index in owners.get(block, ()):
            assert tokens == list(request.tokens[index * size :][: state.filled])
            before = list(request.tokens[max(0, index * size - 5) : index * size])
            # Of a block that the cache knows, no more is looked up than the block before it.
            assert list(found.part.before) == before[len(before) - len(found.part.before) :]
            assert len(found.part.before) >= min(5, size, len(before))
            assert found.part.begins <= (index * size <= 5)
            if index == 0 and request.root == ROOT:
                assert found.part.begins
        seen.add(f"{state.state}{'' if state.hashed or state.state == 'cached' else ', no hash'}")


def check_requests(core: EngineCore) -> None:
    for request in core.scheduler.requests.values():
        for first in (0, request.num_tokens // 2, request.num_tokens, request.num_tokens + 9):
            found = request_tokens(core.scheduler, request.id, first, before=3)
            assert found is not None
            assert found.prompt_tokens == request.prompt_length
            assert found.first + len(found.part.tokens) == request.num_tokens
            assert list(found.part.tokens) == list(request.tokens[found.first :])
            assert list(found.part.before) == list(request.tokens[max(0, found.first - 3) : found.first])
            assert found.part.begins == (found.first <= 3)
            grows = request.beams is None
            assert found.first == min(first, request.num_tokens if grows else request.prompt_length)
    assert request_tokens(core.scheduler, "nobody", 0, 3) is None


def add_some(core: EngineCore, chance: random.Random, name: str) -> None:
    """Prompts that begin alike, one in four with siblings or beams."""
    prompt = [*range(chance.choice([0, 6, 11, 17])), *(chance.randrange(4) for _ in range(chance.randrange(1, 8)))]
    kind = chance.choice(["plain", "plain", "forked", "beams"])
    siblings = [f"{name}.{i}" for i in range(0 if kind == "plain" else 2)]
    beam = BeamParams(3) if kind == "beams" else None
    salt = chance.choice([None, None, "s"])
    sampling = greedy(chance.randrange(1, 24), seed=1 if kind == "forked" else None, ignore_eos=True, beam=beam)
    try:
        core.add(name, prompt, sampling, SchedulingParams(cache_salt=salt), siblings)
    except RequestTooLarge:
        assert kind == "beams"


def test_what_is_told_is_what_the_device_has() -> None:
    seen: set[str] = set()
    for seed, size in enumerate((2, 4, 8, 4)):
        run_and_check(seed, size, seen)
    assert seen >= {"cached", "full", "shared", "filling, no hash", "reserved, no hash"}
    assert seen >= {"copied", "forked", "preempted by swap", "preempted by recompute"}


def run_and_check(seed: int, size: int, seen: set[str]) -> None:
    """Random load, with everything told checked after each step; `seen` gets what came about."""
    chance = random.Random(seed)
    core = mirror_core(120 // size, size, 48, num_host_blocks=40)
    for step in range(200):
        if chance.random() < 0.5:
            add_some(core, chance, f"r{step}")
        if chance.random() < 0.05 and core.scheduler.requests:
            core.abort(chance.choice(sorted(core.scheduler.requests)))
        if chance.random() < 0.05:
            core.set_control(
                Control(
                    batching=chance.choice(["continuous", "continuous", "static"]),
                    allocation=chance.choice(["paged", "paged", "reserved"]),
                    prefix_cache=chance.random() < 0.8,
                    max_num_batched_tokens=chance.choice([7, 64]),
                    preempt=chance.choice(["recompute", "swap"]),
                )
            )
        if chance.random() < 0.02:
            core.clear_cache()
        _, record = core.step()
        check_blocks(core, seen)
        check_requests(core)
        if record is not None:
            seen.update(f"preempted by {lost.by}" for lost in record.preempted)
            seen.update("copied" for _ in record.copies)
            seen.update("forked" for joined in record.joined if joined.parent)


def test_hashes_are_told_in_short_and_begin_a_chain_without_a_parent() -> None:
    core = mirror_core(block_size=4)
    core.add("a", range(10), greedy(1, ignore_eos=True))
    core.step()
    first = chain_hash(ROOT, range(4))
    second = chain_hash(first, range(4, 8))
    names = [None, *(each.hex()[:HASH_DIGITS] for each in (first, second))]
    found = {found.hash: found for found in (block_tokens(core.scheduler, block, 16) for block in range(32))}
    assert set(found) == set(names)
    assert [found[name].parent_hash for name in names[1:]] == names[:2]
    assert found[names[1]].part.begins
    assert found[names[2]].part == msgspec.structs.replace(
        found[names[2]].part, tokens=(4, 5, 6, 7), before=(0, 1, 2, 3), begins=False
    )


def test_what_begins_a_salted_prompt_is_known_while_somebody_holds_it() -> None:
    core = mirror_core(block_size=4)
    core.add("a", range(6), greedy(8, ignore_eos=True), SchedulingParams(cache_salt="s"))
    core.step()
    (block,) = (block for block in range(32) if core.pool.block(block).hashed)
    held = block_tokens(core.scheduler, block, 16)
    assert held.part.begins
    assert held.parent_hash == root_hash("s").hex()[:HASH_DIGITS]
    core.abort("a")
    core.step()
    assert not block_tokens(core.scheduler, block, 16).part.begins
    assert block_tokens(core.scheduler, block, 16).part.tokens == (0, 1, 2, 3)


def test_a_block_outside_the_pool_is_an_error() -> None:
    with pytest.raises(IndexError):
        block_tokens(mirror_core(num_blocks=32).scheduler, 32, 0)


def test_the_list_has_a_snapshots_order_and_counts() -> None:
    core = mirror_core(control=Control(max_num_seqs=1))
    core.add("a", range(5), greedy(9, ignore_eos=True))
    core.add("b", range(7), greedy(9, ignore_eos=True))
    core.step()
    core.flush()
    found = live_requests(core.scheduler, core.seq)
    assert (found.seq, found.running, found.waiting, found.held) == (core.seq, 1, 1, 0)
    assert [each.request for each in found.requests] == [state.request for state in core.snapshot().requests]
    first = found.requests[0]
    assert (first.status, first.prompt_tokens, first.num_tokens, first.computed_tokens) == ("running", 5, 6, 5)
    assert first.blocks == 2


def test_the_loop_answers_between_steps_after_the_record_it_names() -> None:
    core = mirror_core(block_size=4)
    core.add("a", range(6), greedy(9, ignore_eos=True))
    asked = (ListRequests(1), GetRequestTokens(2, "a", 4, 16), GetRequestTokens(3, "b", 0, 16))
    talk = Talk(*asked, GetBlockTokens(4, 31, 16), Shutdown())
    loop_of(core, talk.inbox, talk.sender).run()
    step, listed, request, nobody, block = talk.told()
    assert isinstance(step, Step)
    replies = [reply for reply in (listed, request, nobody, block) if isinstance(reply, Reply)]
    assert [(reply.call, reply.seq) for reply in replies] == [(number, step.seq) for number in (1, 2, 3, 4)]
    assert [reply.error is None for reply in replies] == [True, True, False, True]
    decode = msgspec.json.decode
    assert decode(replies[0].json, type=LiveRequests).waiting == 1
    assert decode(replies[1].json, type=RequestTokens).part.tokens == (4, 5)
    assert decode(replies[3].json, type=BlockTokens).part.tokens == ()


def test_only_what_is_new_is_read_of_a_long_request() -> None:
    """Of a request's tokens no more are touched than are told."""

    class Watched(list):
        most = 0

        def __getitem__(self, wanted):  # type: ignore[no-untyped-def]
            found = super().__getitem__(wanted)
            self.most = max(self.most, len(found) if isinstance(wanted, slice) else 1)
            return found

    core = mirror_core()
    core.add("a", [1] * 8, greedy(9))
    request = core.scheduler.requests["a"]
    request.tokens = Watched([1] * 8192)
    assert request_tokens(core.scheduler, "a", 8190, 16) is not None
    assert request.tokens.most == 16
