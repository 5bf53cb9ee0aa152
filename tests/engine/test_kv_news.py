"""What whoever routes is told of a prefix cache. That it equals the cache, whatever the engine does, is checked by
`KvFold.check`: after every step of the machine in `test_core`, and of the tests of KV events."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.block_index import prompt_names
from engine.cluster.router import Router
from engine.config import EngineConfig
from engine.contents import HASH_DIGITS
from engine.core_client import Aside, CoreClient, CoreProcess
from engine.core_loop import CoreLoop
from engine.faults import Faults
from engine.kv_endpoint import KvPublishing
from engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from engine.kv_news import kv_news
from engine.messages import Add, ClearCache, KvNews, Output, Outputs, Reply, Shutdown, Step
from engine.protocol import decode_snapshot
from engine.sampling_params import SamplingParams, SchedulingParams
from engine.watchdog import Watchdog
from tests.engine.loops import Talk, recorder_of
from tests.engine.mirror import greedy, mirror_core


def stored(*names: int) -> BlockStored:
    return BlockStored(names, None, (), 1, None, None, None)


def removed(*names: int) -> BlockRemoved:
    return BlockRemoved(names, None)


def test_only_the_outcome_is_told() -> None:
    assert kv_news(()) is None
    assert kv_news((stored(1, 2), removed(1), stored(3))) == KvNews(stored=(2, 3))
    assert kv_news((removed(1), stored(1))) is None
    assert kv_news((removed(1), stored(1), removed(1, 2))) == KvNews(removed=(1, 2))
    assert kv_news((stored(1), AllBlocksCleared(), stored(1))) == KvNews(stored=(1,), cleared=True)
    assert kv_news((removed(1), AllBlocksCleared())) == KvNews(cleared=True)


@given(st.lists(st.lists(st.one_of(st.integers(0, 5), st.none()), max_size=12), max_size=4))
def test_the_outcome_is_what_the_events_come_to(steps: list[list[int | None]]) -> None:
    """Each number is stored if it is not there and else removed; None clears."""
    truth: set[int] = set()
    known: set[int] = set()
    for step in steps:
        events: list[KvEvent] = []
        for name in step:
            if name is None:
                events.append(AllBlocksCleared())
                truth.clear()
            else:
                events.append(removed(name) if name in truth else stored(name))
                truth ^= {name}
        news = kv_news(events)
        if news is not None:
            if news.cleared:
                known.clear()
            assert known >= set(news.removed)
            assert known.isdisjoint(news.stored)
            known = known - set(news.removed) | set(news.stored)
        assert known == truth


def test_a_loop_tells_after_the_step_and_before_the_answer_and_publishes_too() -> None:
    published: list[KvEvent] = []
    prompt = tuple(range(9))
    add = Add("a", prompt, greedy(1), SchedulingParams(cache_salt="its own"))
    talk = Talk(add)
    core = mirror_core(kv_events=True)
    watchdog, faults = Watchdog(0, lambda age: None), Faults(())
    step = core.step

    def step_once() -> tuple[tuple[Output, ...], object]:
        for message in (ClearCache(1), Shutdown()):
            talk.inbox.put(message)
        return step()

    core.step = step_once  # type: ignore[assignment,method-assign]
    CoreLoop(core, talk.inbox, talk.sender, recorder_of(), watchdog, faults, 0, published.extend, tell_kv=True).run()
    told = talk.told()
    assert [type(one) for one in told] == [Outputs, Step, KvNews, Step, KvNews, Reply]
    assert told[2] == KvNews(stored=prompt_names(prompt, 4, "its own"))
    assert told[4] == KvNews(cleared=True)
    assert [type(event) for event in published] == [BlockStored, AllBlocksCleared]


def test_names_of_other_salts_are_others_and_only_full_blocks_have_one() -> None:
    prompt = list(range(11))
    names = {salt: prompt_names(prompt, 4, salt) for salt in (None, "", "x")}
    assert {len(each) for each in names.values()} == {2}
    assert len({name for each in names.values() for name in each}) == 6


async def test_what_an_engine_tells_is_what_it_has() -> None:
    """A real one, on the model `tiny`, that has to evict, and publishes to others too."""
    router = Router(16)
    router.add_worker("it", "replica")
    removed = 0

    def on_aside(aside: Aside) -> None:
        nonlocal removed
        assert isinstance(aside, KvNews)
        removed += len(aside.removed)
        router.take("it", aside)

    config = EngineConfig(
        model="tiny", kv_memory=1 << 18, tell_kv=True, kv_events=KvPublishing("tcp://127.0.0.1:0"), threads=1
    )
    client = CoreClient(CoreProcess(config), lambda seq, json: None, on_aside=on_aside)
    running = asyncio.create_task(client.run(lambda ready: None))
    try:
        info = await client.until_ready()
        assert info is not None
        last: tuple[int, ...] = ()
        for number in range(3 * info.num_blocks // 6):  # of 6 blocks each
            last = tuple((number * 7 + place) % 200 for place in range(100))
            request = Add(f"r{number}", last, SamplingParams(2, temperature=0.0, ignore_eos=True))
            client.add(request, lambda output: None, request.request)
        await client.until_idle()
        snapshot = decode_snapshot((await client.snapshot()).json)
        has = set[str]()
        for block in snapshot.blocks:
            if block.hashed:
                told = (await client.block_tokens(block.block, 0))[1].hash
                assert told is not None
                has.add(told)
        known = router.cached("it")
        assert {f"{name:016x}"[:HASH_DIGITS] for name in known} == has
        assert removed > 0
        assert known.issuperset(prompt_names(last, 16))
        await client.clear_cache()
        assert router.cached("it") == frozenset()
    finally:
        await client.shutdown()
        await running
