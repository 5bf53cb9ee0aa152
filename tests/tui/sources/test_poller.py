"""One server asked again and again, through all that goes wrong; each by itself."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import zmq.asyncio

from servers.kv_events import BlockStored
from servers.looks import Look, Looks
from servers.reading import read
from servers.slots import Slot
from tests.servers.certificates import make_authority
from tests.servers.kv_publisher import KvPublisher
from tests.servers.pages import EngineFigures
from tests.servers.stand_in import StandIn
from tests.tui.sources.waiting import until
from tui.sources.items import Failed, KvLink, KvMessage, Scrape, Slots, SourceHead
from tui.sources.poller import Poller
from tui.sources.targets import HttpSettings, KvEndpoint, Target, target

EVERY = 0.05


@asynccontextmanager
async def polling(*targets, every=EVERY, settings=HttpSettings()):  # noqa: B008
    """A list of what is heard of each."""
    heard = [[] for _ in targets]
    pollers = [Poller(one, settings, heard[n].append, n, every) for n, one in enumerate(targets)]
    tasks = [asyncio.create_task(poller.run()) for poller in pollers]
    try:
        yield heard
        assert not [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def of(items, kind):
    return [item for item in items if isinstance(item, kind)]


async def test_it_tells_who_it_is_and_then_each_page_without_what_nobody_reads():
    async with StandIn("vllm", bulk=400) as server, polling(target(server.url, "one")) as (items,):
        server.engine.serve(3, prompt=100, cached=40)
        await until(lambda: len(of(items, Scrape)) >= 3 and of(items, SourceHead)[-1].version)
        heads = of(items, SourceHead)
        assert [(head.kind, head.version) for head in heads] == [("", ""), ("vllm", ""), ("vllm", "1.2.3")]
        assert {(head.name, head.url, head.every) for head in heads} == {("one", server.url, EVERY)}
        scrapes = of(items, Scrape)
        assert all(earlier.time < later.time - later.took for earlier, later in pairwise(scrapes))
        assert "route" not in scrapes[-1].text
        assert "python_gc" not in scrapes[-1].text
        reading = read(scrapes[-1].text)
        assert [sum(reading.counters[term].values()) for term in ("prompt_tokens", "prefix_hit_tokens")] == [300, 120]
        assert server.asked.count("/version") == 1
        assert server.most_at_once <= 2  # a page, and the version that nothing waits for
        assert not of(items, Failed)


async def test_a_server_that_hangs_holds_up_nobody(monkeypatch):
    monkeypatch.setattr("tui.sources.poller.LEAST_TIMEOUT", 600.0)
    async with StandIn() as hanging, StandIn("sglang") as fine:
        hanging.mode = "hang"
        async with polling(target(hanging.url), target(fine.url)) as (stuck, going):
            await until(lambda: len(of(going, Scrape)) >= 8)
            assert stuck == of(stuck, SourceHead)  # nothing heard yet, and
            assert hanging.metrics_asked == 1  # nobody asked twice at once
            hanging.mode = "ok"


async def test_it_goes_on_when_the_server_does(monkeypatch):
    monkeypatch.setattr("tui.sources.poller.LEAST_TIMEOUT", 0.3)
    async with StandIn() as server, polling(target(server.url)) as (items,):
        for mode, phase, reason in (
            ("unready", "failing", "not ready to serve: HTTP 503: the model is loading"),
            ("hang", "failing", "no answer within 0.3 s"),
            ("locked", "locked", "needs a key: --api-key or --api-key-file"),
            ("cut", "failing", "the connection was cut, or it does not speak HTTP"),
            ("none", "failing", "/metrics answers HTTP 404"),
            ("html", "failing", "its metrics have no names of vLLM any more"),
            ("moved", "failing", "/metrics answers HTTP 307, to https://elsewhere.example/metrics"),
        ):
            before = len(of(items, Scrape))
            server.mode = "ok"
            await until(lambda before=before: len(of(items, Scrape)) > before)
            failed = len(of(items, Failed))
            server.mode = mode
            await until(lambda failed=failed: len(of(items, Failed)) > failed)
            first = of(items, Failed)[failed]
            assert (first.phase, first.reason) == (phase, reason)
        server.mode = "ok"
        before = len(of(items, Scrape))
        await until(lambda: len(of(items, Scrape)) > before)


async def test_it_waits_for_a_server_and_finds_another_in_its_place():
    server = StandIn("vllm", version="1")
    await server.start()
    await server.stop()
    async with polling(target(server.url)) as (items,):
        await until(lambda: of(items, Failed))
        assert of(items, Failed)[-1].reason == "nothing answers there"
        await server.start()
        await until(lambda: of(items, SourceHead)[-1].version == "1")
        await server.stop()
        failed = len(of(items, Failed))
        await until(lambda: len(of(items, Failed)) > failed)
        server.version = "2"
        server.restart()
        await server.start()
        await until(lambda: of(items, SourceHead)[-1].version == "2")
        await server.stop()
        server.kind = "tensorrt-llm"
        await server.start()
        await until(lambda: of(items, SourceHead)[-1].kind == "tensorrt-llm")
        scraped = len(of(items, Scrape))
        await until(lambda: len(of(items, Scrape)) > scraped)
        assert read(of(items, Scrape)[-1].text).kind == "tensorrt-llm"
        server.kind = "sglang"  # between two looks, and elsewhere: at /metrics
        await until(lambda: of(items, SourceHead)[-1].kind == "sglang")
    await server.stop()


async def test_a_fault_of_this_program_while_a_version_is_asked_for_is_not_silent(monkeypatch):
    async def fails(http, kind):
        raise ZeroDivisionError("by this program")

    monkeypatch.setattr("tui.sources.poller.ask_version", fails)
    async with StandIn("vllm") as server:
        poller = Poller(target(server.url), HttpSettings(), lambda item: None, 0, EVERY)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(poller.run(), 30)


async def test_a_fault_over_kv_events_leaves_no_socket_open():
    def sink(item):
        if isinstance(item, KvMessage):
            raise ZeroDivisionError("by this program")

    context = zmq.asyncio.Context.instance()
    before = len(context._sockets)
    with KvPublisher(replay=True) as publisher:
        publisher.publish(BlockStored((1, 2), None, tuple(range(8)), 4))
        kv = (KvEndpoint(publisher.endpoint, publisher.replay_endpoint),)
        async with StandIn() as server:
            poller = Poller(Target("one", server.url, kv=kv), HttpSettings(), sink, 0, EVERY)
            with pytest.raises(ZeroDivisionError) as fault:
                await asyncio.wait_for(poller.run(), 30)
            assert len([one for one in context._sockets if not one.closed]) == before, fault


async def test_another_server_on_the_same_page():
    async with StandIn("vllm") as server, polling(target(server.url)) as (items,):
        await until(lambda: of(items, Scrape))
        server.kind = "paged-engine"
        await until(lambda: of(items, SourceHead)[-1].kind == "paged-engine")
        server.kind = "vllm"
        await until(lambda: of(items, SourceHead)[-1].kind == "vllm")
        assert not of(items, Failed)


async def test_what_is_foreign_is_found_once_it_tells(monkeypatch):
    monkeypatch.setattr("tui.sources.poller.FOREIGN_SECONDS", 0.1)
    async with StandIn("sglang") as server:
        server.mode = "none"
        async with polling(target(server.url)) as (items,):
            await until(lambda: len(of(items, Failed)) >= 2)
            assert {item.phase for item in of(items, Failed)} == {"foreign"}
            server.mode = "ok"
            await until(lambda: of(items, Scrape))
            assert of(items, SourceHead)[-1].kind == "sglang"


async def test_a_page_without_end_is_read_rarely(monkeypatch):
    monkeypatch.setattr("tui.sources.http.MAX_ANSWER", 1 << 20)
    monkeypatch.setattr("tui.sources.poller.FOREIGN_SECONDS", 600.0)
    async with StandIn() as server, polling(target(server.url)) as (items,):
        await until(lambda: of(items, Scrape))
        server.mode = "endless"
        await until(lambda: len(of(items, Failed)) >= 2)
        told = [(item.phase, item.reason) for item in of(items, Failed)]
        assert told == [("failing", "it answers with more than 1 MiB"), ("foreign", "it answers with more than 1 MiB")]
        asked = server.metrics_asked
        await asyncio.sleep(10 * EVERY)
        assert server.metrics_asked == asked


async def test_slots_of_llama_cpp_without_prompts():
    row = {
        "id": 0,
        "id_task": 7,
        "n_ctx": 4096,
        "is_processing": True,
        "prompt": "s3cret",
        "next_token": {"n_decoded": 5},
    }
    async with StandIn("llama.cpp") as server:
        server.slots = [row, {"id": 1, "id_task": -1, "n_ctx": 4096, "is_processing": False}]
        async with polling(target(server.url)) as (items,):
            await until(lambda: len(of(items, Slots)) >= 2)
            slots = of(items, Slots)[-1].slots
            assert slots == (Slot(0, True, 7, 4096, decoded=5), Slot(1, False, None, 4096))
            assert "s3cret" not in repr(items)
            server.slots = None  # as without --slots: 501
            await until(lambda: server.asked[-3:] == ["/metrics"] * 3)
            told = [one.slots for one in of(items, Slots)]
            assert told[-1] is None  # those it told last are not of now,
            assert told.count(None) == 1  # which is said once
            assert server.asked.count("/slots") == len(told)
            assert not of(items, Failed)


async def test_kv_events_are_heard_beside_metrics():
    stored = BlockStored((1, 2), None, tuple(range(8)), 4)
    with KvPublisher() as publisher:
        kv = (KvEndpoint(publisher.endpoint),)
        async with StandIn() as server, polling(Target("one", server.url, kv=kv)) as (items,):
            await until(lambda: any(link.phase == "live" for link in of(items, KvLink)))
            await asyncio.to_thread(publisher.wait_for_subscriber)
            publisher.publish(stored)
            await until(lambda: of(items, KvMessage) and of(items, Scrape))
            (message,) = of(items, KvMessage)
            assert message.endpoint == publisher.endpoint
            assert "token_ids" not in repr(message.payload)


async def test_several_engines_and_models_come_in_one_page():
    engines = [EngineFigures("m", "0"), EngineFigures("m", "1"), EngineFigures("n", "0")]
    async with StandIn("vllm", engines) as server, polling(target(server.url)) as (items,):
        for number, engine in enumerate(engines):
            engine.running = number + 1
        await until(lambda: len(of(items, Scrape)) >= 2)
        reading = read(of(items, Scrape)[-1].text)
        assert len(reading.engines) == 3
        assert reading.totals()["running"] == 6


async def test_a_page_that_takes_long_to_read_is_asked_for_less_often(monkeypatch):
    ticks = iter(range(1_000_000))
    monkeypatch.setattr("tui.sources.poller.time.thread_time", lambda: next(ticks) * 3 * EVERY)  # each reading: 3
    monkeypatch.setattr("tui.sources.poller.REST", 2.0)
    async with StandIn() as server, polling(target(server.url)) as (items,):
        await until(lambda: len(of(items, Scrape)) >= 3)
        assert all(later.time - earlier.time >= 6 * EVERY for earlier, later in pairwise(of(items, Scrape)))
        assert [head.every for head in of(items, SourceHead)][-1] == 8 * EVERY  # what is told of it


async def test_a_page_that_cannot_be_read_and_takes_long_is_too(monkeypatch):
    ticks = iter(range(1_000_000))
    monkeypatch.setattr("tui.sources.finder.time.thread_time", lambda: next(ticks) * 3 * EVERY)
    monkeypatch.setattr("tui.sources.poller.REST", 2.0)
    async with StandIn() as server, polling(target(server.url)) as (items,):
        server.mode = "garbage"
        await until(lambda: len(of(items, Failed)) >= 3)
        assert all(later.time - earlier.time >= 6 * EVERY for earlier, later in pairwise(of(items, Failed)))


@pytest.mark.parametrize(
    ("years", "reason"), [((2020, 2021), "certificate has expired"), ((2090, 2091), "certificate is not yet valid")]
)
async def test_a_certificate_that_is_not_good_now_is_told_and_not_believed(tmp_path, years, reason):
    authority = make_authority(tmp_path, years=years)
    async with (
        StandIn(tls=authority.server) as server,
        polling(target(server.url), settings=HttpSettings(ca_file=authority.ca)) as (items,),
    ):
        await until(lambda: of(items, Failed))
        failed = of(items, Failed)[0]
        assert failed.phase == "failing"
        assert failed.reason.startswith("no TLS with what answers there (")
        assert reason in failed.reason
        assert "--ca-file" not in failed.reason  # which would change nothing
        assert server.asked == []


async def test_a_rate_is_over_the_time_that_this_machine_slept_too(monkeypatch):
    """As time.monotonic is not."""
    asleep, real = [0.0], time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + asleep[0])
    async with StandIn() as server, polling(target(server.url)) as (items,):
        await until(lambda: len(of(items, Scrape)) >= 3)
        server.mode = "unready"  # nothing is read while it falls asleep
        await until(lambda: of(items, Failed))
        before = of(items, Scrape)[-1]
        asleep[0] = 3_600.0
        server.engine.serve(360, prompt=10, generated=100)
        server.mode = "ok"
        await until(lambda: of(items, Scrape)[-1].time > before.time)
    after = next(scrape for scrape in of(items, Scrape) if scrape.time > before.time)
    looks = Looks([Look(scrape.time, read(scrape.text)) for scrape in (before, after)])
    measured = looks.measure(60.0)
    assert measured.growth["generation_tokens"] == 36_000
    assert measured.seconds >= 3_600
    assert 9.0 < measured.rate("generation_tokens") <= 10.0
