import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from servers import kv_subscriber
from servers.kv_events import BlockRemoved, BlockStored, Heard, KvEvent, Message, Missed, Restarted
from servers.kv_subscriber import subscribe
from servers.kv_tree import KvTree
from tests.servers.kv_publisher import ENCODINGS, KvPublisher, PrefixCache

WAIT = 20.0  # seconds, for a message that comes in milliseconds


def stored(*hashes: int, parent: int | None = None) -> BlockStored:
    return BlockStored(hashes, parent, tuple(range(4 * len(hashes))), 4, None, "GPU")


async def take(messages: AsyncIterator[Message], count: int) -> list[Message]:
    return [await asyncio.wait_for(anext(messages), WAIT) for _ in range(count)]


def told(message: Message) -> object:
    """A number for what was heard; else the message."""
    return message.sequence if isinstance(message, Heard) else message


async def connected(publisher: KvPublisher, messages: AsyncIterator[Message]) -> list[Message]:
    """Its first message, with which the subscription holds: until then publishers send to nobody."""
    first = asyncio.ensure_future(anext(messages))
    await asyncio.to_thread(publisher.wait_for_subscriber)
    publisher.publish(stored(1))
    return [await asyncio.wait_for(first, WAIT)]


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_tree_is_its_publishers_cache_after_each_message(encoding):
    cache = PrefixCache(random.Random(5), ("GPU", "CPU"), group=0)
    tree = KvTree()
    with KvPublisher(encoding, topic="kv-events", rank=0) as publisher:
        async with aclosing(subscribe(publisher.endpoint, topic="kv")) as messages:
            for message in await connected(publisher, messages):
                tree.take(message)
            publisher.publish(BlockRemoved((1,), "GPU", None))
            tree.take(*await take(messages, 1))
            for _ in range(60):
                publisher.publish(*cache.step())
                tree.take(*await take(messages, 1))
                assert set(tree.hashes()) == set(cache.media)
    assert tree.complete
    assert tree.churn.stored > 50


async def test_through_gaps_restarts_and_changes_of_encoding_the_tree_is_the_publishers_cache():
    chance = random.Random(11)
    cache, tree = PrefixCache(chance, ("GPU", "CPU")), KvTree()
    with KvPublisher(replay=True) as publisher:
        publisher.publish(*cache.step())
        async with aclosing(subscribe(publisher.endpoint, publisher.replay_endpoint)) as messages:
            tree.take(*await take(messages, 1))
            waiting = asyncio.ensure_future(anext(messages))
            await asyncio.to_thread(publisher.wait_for_subscriber)
            for step in range(120):
                publisher.encoding = chance.choice(ENCODINGS)
                if step in (40, 80):
                    await asyncio.to_thread(publisher.restart)
                    cache = PrefixCache(chance, ("GPU", "CPU"))
                    await asyncio.to_thread(publisher.wait_for_subscriber)
                lost = chance.random() < 0.3
                number = publisher.publish(*cache.step(), drop=lost)
                while not lost:
                    message = await asyncio.wait_for(waiting, WAIT)
                    waiting = asyncio.ensure_future(anext(messages))
                    tree.take(message)
                    lost = told(message) == number
                    if lost:
                        assert (set(tree.hashes()), tree.complete) == (set(cache.media), True)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    assert (tree.churn.restarted, tree.churn.missed) == (2, 0)
    assert len(publisher.asked) > 10


async def test_a_gap_is_told_where_it_cannot_be_filled():
    with KvPublisher() as publisher:
        async with aclosing(subscribe(publisher.endpoint)) as messages:
            assert list(map(told, await connected(publisher, messages))) == [0]
            publisher.publish(stored(2), drop=True)
            publisher.publish(stored(3), drop=True)
            publisher.publish(stored(4))
            publisher.publish(stored(5))
            assert list(map(told, await take(messages, 3))) == [Missed(1, 2), 3, 4]


async def test_a_late_subscriber_is_told_of_no_gap():
    with KvPublisher() as publisher:
        for number in range(7):
            publisher.publish(stored(number))
        tree = KvTree()
        async with aclosing(subscribe(publisher.endpoint)) as messages:
            (message,) = await connected(publisher, messages)
            tree.take(message)
    assert told(message) == 7
    assert (tree.late, tree.complete, tree.doubtful_since) == (True, False, None)


@pytest.mark.parametrize("topic_in_answers", [True, False])
async def test_what_is_missing_is_had_again_by_replay_in_order(topic_in_answers):
    with KvPublisher(topic="kv", replay=True) as publisher:
        publisher.topic_in_answers = topic_in_answers
        publisher.publish(stored(100))
        async with aclosing(subscribe(publisher.endpoint, publisher.replay_endpoint, "kv")) as messages:
            assert list(map(told, await take(messages, 1))) == [0], "a late subscriber gets what is still there"
            first = asyncio.ensure_future(anext(messages))
            await asyncio.to_thread(publisher.wait_for_subscriber)
            publisher.publish(stored(1))
            assert told(await asyncio.wait_for(first, WAIT)) == 1
            for number in range(2, 6):
                publisher.publish(stored(number), drop=number < 4)
            assert list(map(told, await take(messages, 4))) == [2, 3, 4, 5], "and those that it sent twice come once"
            publisher.publish(stored(6))
            assert list(map(told, await take(messages, 1))) == [6]
    assert publisher.asked == [0, 1]


async def test_what_the_replay_has_no_more_is_missed():
    with KvPublisher(replay=True, buffered=2) as publisher:
        async with aclosing(subscribe(publisher.endpoint, publisher.replay_endpoint)) as messages:
            await connected(publisher, messages)
            for number in range(1, 9):
                publisher.publish(stored(number), drop=number < 8)
            assert list(map(told, await take(messages, 3))) == [Missed(1, 6), 7, 8]


async def test_an_answer_with_holes_is_asked_for_again():
    with KvPublisher(replay=True) as publisher:
        for number in range(10):
            publisher.publish(stored(number))
        publisher.holes = {3, 4, 7}
        async with aclosing(subscribe(publisher.endpoint, publisher.replay_endpoint)) as messages:
            assert list(map(told, await take(messages, 10))) == list(range(10))
    assert publisher.asked == [0, 2], "from the last that came on"


async def test_messages_that_were_never_kept_are_missed_though_the_replay_has_later_ones():
    with KvPublisher(replay=True) as publisher:
        publisher.publish(stored(0))
        publisher.publish(stored(1))
        publisher.lose(3)
        publisher.publish(stored(5))
        async with aclosing(subscribe(publisher.endpoint, publisher.replay_endpoint)) as messages:
            assert list(map(told, await take(messages, 4))) == [0, 1, Missed(2, 4), 5]


@pytest.mark.parametrize("answers", ["none", "no end"])
async def test_a_replay_that_breaks_off_does_not_hold_up_what_is_live(answers, monkeypatch):
    monkeypatch.setattr(kv_subscriber, "SILENCE", 0.2)
    with KvPublisher(replay=True) as publisher:
        publisher.answers = answers
        publisher.publish(stored(0))
        async with aclosing(subscribe(publisher.endpoint, publisher.replay_endpoint)) as messages:
            if answers == "no end":
                assert list(map(told, await take(messages, 1))) == [0]
            first = asyncio.ensure_future(anext(messages))
            await asyncio.to_thread(publisher.wait_for_subscriber)
            publisher.publish(stored(1))
            assert told(await asyncio.wait_for(first, WAIT)) == 1
            publisher.lose(2)
            publisher.publish(stored(4))
            publisher.lose(2)
            publisher.publish(stored(7))
            assert list(map(told, await take(messages, 4))) == [Missed(2, 3), 4, Missed(5, 6), 7]


@pytest.mark.parametrize("replay", [True, False])
async def test_a_number_that_falls_is_a_restart(replay):
    tree = KvTree()
    with KvPublisher(replay=replay) as publisher:
        async with aclosing(subscribe(publisher.endpoint, publisher.replay_endpoint)) as messages:
            tree.take(*await connected(publisher, messages))
            for number in range(1, 5):
                publisher.publish(stored(number))
            for message in await take(messages, 4):
                tree.take(message)
            await asyncio.to_thread(publisher.restart)
            again = asyncio.ensure_future(anext(messages))
            publisher.publish(stored(70), drop=True)
            await asyncio.to_thread(publisher.wait_for_subscriber)
            publisher.publish(stored(71))
            tree.take(await asyncio.wait_for(again, WAIT))
            heard = await take(messages, 2 if replay else 1)
            for message in heard:
                tree.take(message)
    assert list(map(told, heard)) == ([0, 1] if replay else [1])
    assert set(tree.hashes()) == ({70, 71} if replay else {71})
    assert tree.churn.restarted == 1
    assert tree.complete == replay, "without a replay it was late for the new one"


async def test_a_restart_that_nobody_saw_is_found_by_the_replay():
    with KvPublisher(replay=True) as publisher:
        async with aclosing(subscribe(publisher.endpoint, publisher.replay_endpoint)) as messages:
            await connected(publisher, messages)
            await asyncio.to_thread(publisher.restart)
            for number in range(5):
                publisher.publish(stored(number), drop=True)
            again = asyncio.ensure_future(anext(messages))
            await asyncio.to_thread(publisher.wait_for_subscriber)
            publisher.publish(stored(5))
            assert await asyncio.wait_for(again, WAIT) == Restarted()
            assert list(map(told, await take(messages, 6))) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("later", [2, 30])
async def test_what_a_publisher_had_sent_before_it_restarted_is_not_taken_for_the_new_ones(later):
    """The replay is of the new one already, while live messages of the old one wait to be read."""
    with KvPublisher(replay=True) as publisher:
        async with aclosing(subscribe(publisher.endpoint, publisher.replay_endpoint)) as messages:
            tree = KvTree()
            tree.take(*await connected(publisher, messages))
            for number in range(2, 20):
                publisher.publish(stored(number), drop=number == 3)
            await asyncio.sleep(0.2)  # they are in the queue
            await asyncio.to_thread(publisher.restart)
            asked = len(publisher.asked)
            for number in range(100, 100 + later):
                publisher.publish(stored(number))

            async def hear() -> None:
                async for message in messages:
                    tree.take(message)

            hearing = asyncio.create_task(hear())
            try:
                async with asyncio.timeout(WAIT):
                    await asyncio.to_thread(publisher.wait_for_subscriber)
                    for number in (99, 98):
                        publisher.publish(stored(number))
                        while not tree.holds(number):
                            await asyncio.sleep(0.01)
                        assert set(tree.hashes()) == {*range(number, 100 + later)}
                        assert tree.complete
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
            assert (tree.churn.restarted, tree.churn.missed) == (1, 0)
            assert sum(first == 0 for first in publisher.asked[asked:]) == 1


async def test_frames_that_make_no_sense_are_passed_over_and_payloads_are_missed():
    with KvPublisher() as publisher:
        async with aclosing(subscribe(publisher.endpoint)) as messages:
            await connected(publisher, messages)
            publisher.send(b"alone")
            publisher.send(b"", b"short", b"payload")
            publisher.send(b"", b"\xff" * 8, b"")
            publisher.send(b"", b"\x7f" + b"\xff" * 7, b"no publisher gets to that number")
            publisher.publish(payload=b"\xc1 is never msgpack")
            publisher.publish(payload=b"\x93\x01\x02\x03")
            publisher.publish(stored(3))
            assert list(map(told, await take(messages, 3))) == [Missed(1, 1), Missed(2, 2), 3]


async def test_only_the_topic_is_heard_and_the_connection_is_told_of(monkeypatch):
    seen: list[str] = []
    with KvPublisher(topic="kv@a") as publisher:
        async with aclosing(subscribe(publisher.endpoint, topic="kv@a", told=seen.append)) as messages:
            await connected(publisher, messages)
            publisher.send(b"other", (1).to_bytes(8, "big"), b"")
            publisher.publish(stored(2))
            assert list(map(told, await take(messages, 1))) == [1]
            again = asyncio.ensure_future(anext(messages))
            await asyncio.to_thread(publisher.restart)
            await asyncio.to_thread(publisher.wait_for_subscriber)
            publisher.publish(stored(3))
            assert await asyncio.wait_for(again, WAIT) == Restarted()
    assert seen[0] == "connected"
    assert seen[1] == "connecting"
    assert seen[-1] == "connected"


async def test_a_fault_in_what_is_told_of_the_connection_is_not_silent():
    def told(link: str) -> None:
        raise ZeroDivisionError(link)

    async def hear(publisher: KvPublisher) -> None:
        async with aclosing(subscribe(publisher.endpoint, told=told)) as messages:
            await connected(publisher, messages)
            while True:  # it was told of the connection a moment later
                publisher.publish(stored(2))
                await take(messages, 1)

    with KvPublisher() as publisher, pytest.raises(ZeroDivisionError, match="connected"):
        await hear(publisher)


async def test_a_publisher_may_come_later_and_cancelling_closes_the_sockets():
    with KvPublisher() as publisher:
        endpoint = publisher.endpoint
    import zmq.asyncio

    context = zmq.asyncio.Context.instance()
    before = len(context._sockets)
    events: list[KvEvent] = []

    async def listen() -> None:
        async with aclosing(subscribe(endpoint, told=lambda link: None)) as messages:
            async for message in messages:
                assert isinstance(message, Heard)
                events.extend(message.batch.events)

    task = asyncio.create_task(listen())
    await asyncio.sleep(0.05)
    assert len(context._sockets) > before
    with KvPublisher() as publisher:
        publisher.endpoint = endpoint
        await asyncio.to_thread(publisher.restart)
        await asyncio.to_thread(publisher.wait_for_subscriber)
        publisher.publish(stored(1))
        for _ in range(2000):
            if events:
                break
            await asyncio.sleep(0.01)
    assert events == [stored(1)]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len([socket for socket in context._sockets if not socket.closed]) == before


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("tcp://*:5557", "name its host, as tcp://host:5557"),
        ("http://127.0.0.1:5557", "tcp://host:5557 or ipc://path is wanted"),
        ("tcp://127.0.0.1", "wanted"),
        ("tcp://127.0.0.1:0", "wanted"),
        ("tcp://:5557", "wanted"),
        ("127.0.0.1:5557", "wanted"),
        ("ipc://", "wanted"),
        ("", "wanted"),
    ],
)
def test_endpoints_that_nobody_can_connect_to(endpoint, says):
    with pytest.raises(ValueError, match=r"came|listens") as error:
        subscribe(endpoint)
    assert says in str(error.value)
    with pytest.raises(ValueError, match=r"came|listens"):
        subscribe("tcp://127.0.0.1:5557", replay=endpoint)


@pytest.mark.parametrize("endpoint", ["tcp://no such host:5557", "ipc:///" + "long" * 100])
async def test_endpoints_that_zmq_alone_finds_wrong(endpoint):
    for one in (subscribe(endpoint), subscribe("tcp://127.0.0.1:5557", endpoint)):
        with pytest.raises(ValueError, match="cannot be connected to"):
            await asyncio.wait_for(anext(one), WAIT)
