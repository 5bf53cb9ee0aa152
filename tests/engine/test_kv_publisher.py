"""The publisher with real sockets: frames, replay, bounds, and that it waits for nobody."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest
import zmq

from engine import kv_publisher
from engine.kv_endpoint import KvPublishing, is_open, tcp_endpoint, topic
from engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from engine.kv_publisher import END, CannotPublish, KvPublisher

ANY = "tcp://127.0.0.1:0"
PATIENCE = 20_000  # milliseconds


@contextmanager
def publisher(replay: str = ANY, name: str = "kv-events", **bounds) -> Iterator[KvPublisher]:
    one = KvPublisher(KvPublishing(ANY, replay, name), clock=lambda: 5.0, **bounds)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def connect(
    context, kind: int, endpoint: str, subscription: bytes | None = None, unread: int = 1000
) -> zmq.Socket[bytes]:
    one = context.socket(kind)
    one.setsockopt(zmq.RCVHWM, unread)
    one.setsockopt(zmq.RCVTIMEO, PATIENCE)
    one.setsockopt(zmq.SNDTIMEO, PATIENCE)
    one.setsockopt(zmq.IPV6, "[" in endpoint)
    if subscription is not None:
        one.setsockopt(zmq.SUBSCRIBE, subscription)
    one.connect(endpoint)
    return one


def subscribed(context, publishing: KvPublisher, subscription: bytes = b"", unread: int = 1000) -> zmq.Socket[bytes]:
    """A subscriber that hears everything from now on: it has heard something already."""
    one = connect(context, zmq.SUB, publishing.where.endpoint, subscription, unread)
    one.setsockopt(zmq.RCVTIMEO, 20)
    while True:
        publishing.publish((AllBlocksCleared(),))
        try:
            one.recv_multipart()
        except zmq.Again:
            continue
        break
    one.setsockopt(zmq.RCVTIMEO, PATIENCE)
    return one


def ask(question: zmq.Socket[bytes], first: int) -> list[tuple[int, bytes]]:
    """Batches from `first` on that are told again, by number."""
    question.send_multipart((b"", first.to_bytes(8, "big")))
    found = []
    while True:
        empty, topic_frame, number, payload = question.recv_multipart()
        assert empty == b""
        if number == END:
            assert (topic_frame, payload) == (b"", b"")
            return found
        assert topic_frame == b"kv-events"
        found.append((int.from_bytes(number, "big"), payload))


def removed(number: int) -> tuple[BlockRemoved]:
    return (BlockRemoved((number,), "GPU"),)


def numbers(batches: list[tuple[int, bytes]]) -> list[int]:
    return [number for number, _ in batches]


def test_a_message_is_topic_number_and_batch(context) -> None:
    with publisher() as one:
        listener = subscribed(context, one, b"kv-")
        stored = BlockStored((1, 2), None, (5, 6, 7, 8), 2, None, "GPU", None)
        one.publish((stored, *removed(3)))
        one.publish(removed(4))
        heard = [listener.recv_multipart() for _ in range(2)]
        while msgspec.msgpack.decode(heard[0][2])[1] == [{"type": "AllBlocksCleared"}]:
            heard = [heard[1], listener.recv_multipart()]
        first, second = heard
        assert first[0] == second[0] == b"kv-events"
        assert [len(frame) for frame in first[:2]] == [9, 8]
        assert int.from_bytes(second[1], "big") == int.from_bytes(first[1], "big") + 1
        time, events, rank = msgspec.msgpack.decode(first[2])
        assert (time, rank, [event["type"] for event in events]) == (5.0, 0, ["BlockStored", "BlockRemoved"])


def test_batches_are_told_again_from_the_number_asked_for(context) -> None:
    with publisher() as one:
        for number in range(5):
            one.publish(removed(number))
        question = connect(context, zmq.DEALER, one.where.replay)
        assert numbers(ask(question, 0)) == [0, 1, 2, 3, 4]
        again = ask(question, 3)
        assert [msgspec.msgpack.decode(payload)[1][0]["block_hashes"] for _, payload in again] == [[3], [4]]
        assert ask(question, 5) == []
        assert ask(question, 2**64 - 1) == []


def test_what_is_no_question_gets_no_answer_and_harms_nobody(context) -> None:
    with publisher() as one:
        one.publish(removed(0))
        question = connect(context, zmq.DEALER, one.where.replay)
        for frames in ((b"",), (b"", b"short"), (b"", bytes(8), b"more"), (bytes(8),), (b"", b"x" * 4000)):
            question.send_multipart(frames)
        assert numbers(ask(question, 0)) == [0]
        huge = connect(context, zmq.DEALER, one.where.replay)
        huge.send_multipart((b"", b"x" * 100_000))
        with socket.create_connection(("127.0.0.1", int(one.where.replay.rpartition(":")[2]))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert numbers(ask(question, 0)) == [0]


def test_only_so_many_batches_and_bytes_are_kept(context) -> None:
    with publisher(kept_batches=3) as one:
        for number in range(10):
            one.publish(removed(number))
        assert numbers(ask(connect(context, zmq.DEALER, one.where.replay), 0)) == [7, 8, 9]
    size = len(b"\x93\xcb" + bytes(8)) + 50
    with publisher(kept_bytes=5 * size) as one:
        for number in range(100):
            one.publish(removed(number))
        kept = ask(connect(context, zmq.DEALER, one.where.replay), 0)
        assert numbers(kept) == list(range(100 - len(kept), 100))
        assert 0 < sum(len(payload) for _, payload in kept) <= 5 * size


def test_a_subscriber_that_does_not_read_holds_nobody_up_and_finds_a_hole_that_can_be_filled(context) -> None:
    """The batches are more than all buffers between hold."""
    with publisher() as one:
        slow = subscribed(context, one, unread=1)
        stored = BlockStored(tuple(range(500)), None, tuple(range(1000, 9000)), 16, None, "GPU", None)
        for _ in range(2_000):  # 30 KB each
            one.publish((stored,))
        heard = [int.from_bytes(slow.recv_multipart()[1], "big")]
        while True:
            one.publish(removed(1))  # while it reads there is room again
            heard.append(int.from_bytes(slow.recv_multipart()[1], "big"))
            if heard[-1] != heard[-2] + 1:
                break
        missed = range(heard[-2] + 1, heard[-1])
        assert len(missed) > 100
        again = numbers(ask(connect(context, zmq.DEALER, one.where.replay), heard[-2] + 1))
        assert again == list(range(again[0], one._sequence)), "what is kept has no hole"
        assert set(again) & set(missed)


def test_an_endpoint_in_use_is_named_with_its_flag() -> None:
    with publisher() as one:
        with pytest.raises(CannotPublish, match=rf"^--kv-events {one.where.endpoint}: .*in use"):
            KvPublisher(one.where)
        with pytest.raises(CannotPublish, match=rf"^--kv-events-replay {one.where.replay}: .*in use"):
            KvPublisher(KvPublishing(ANY, one.where.replay))
        with pytest.raises(CannotPublish, match=r"^--kv-events tcp://192\.0\.2\.1:0: .*assign requested address"):
            KvPublisher(KvPublishing("tcp://192.0.2.1:0"))


def test_it_waits_for_the_endpoint_of_the_one_before_and_counts_anew(context, monkeypatch) -> None:
    with publisher() as one:
        listener = subscribed(context, one)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            one.close()

        monkeypatch.setattr(kv_publisher.time, "sleep", pause)
        another = KvPublisher(one.where, patience=20.0)
        try:
            assert pauses
            assert another.where == one.where
            listener.setsockopt(zmq.RCVTIMEO, 20)
            heard: list[int] = []
            while heard != [7]:  # it comes back by itself, and may not hear the first ones
                another.publish(removed(7))
                with suppress(zmq.Again):
                    (event,) = msgspec.msgpack.decode(listener.recv_multipart()[2])[1]
                    heard = event.get("block_hashes")
            assert numbers(ask(connect(context, zmq.DEALER, another.where.replay), 0))[0] == 0
        finally:
            another.close()


def test_closing_sends_what_waits_and_frees_the_endpoint(context) -> None:
    with publisher("") as one:
        assert one.where.replay == ""
        listener = subscribed(context, one)
        for number in range(500):
            one.publish(removed(number))
    heard = []
    while not heard or heard[-1] != [499]:
        (event,) = msgspec.msgpack.decode(listener.recv_multipart()[2])[1]
        heard.append(event.get("block_hashes"))
    assert [found for found in heard if found is not None] == [[number] for number in range(500)]
    KvPublisher(one.where).close()
    one.close()  # once more does no harm


@pytest.mark.parametrize(
    ("text", "endpoint", "beyond"),
    [
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557", False),
        ("tcp://localhost:0", "tcp://127.0.0.1:0", False),
        ("tcp://[::1]:5557", "tcp://[::1]:5557", False),
        ("tcp://*:5557", "tcp://0.0.0.0:5557", True),
        ("tcp://[::]:5557", "tcp://[::]:5557", True),
        ("tcp://10.0.0.3:05557", "tcp://10.0.0.3:5557", True),
        ("tcp://[::ffff:10.0.0.3]:1", "tcp://[::ffff:a00:3]:1", True),
    ],
)
def test_endpoints(text: str, endpoint: str, beyond: bool) -> None:
    assert tcp_endpoint(text) == endpoint
    assert is_open(endpoint) == beyond


@pytest.mark.parametrize(
    "text",
    [
        *("", "5557", "127.0.0.1:5557", "tcp://127.0.0.1", "tcp://127.0.0.1:65536", "tcp://a.example:1"),
        *("tcp://::1:5557", "ipc:///tmp/x", "inproc://x", "tcp://[127.0.0.1]:1", "tcp://eth0:5557"),
        "tcp://127.0.0.1:1;tcp://1.1.1.1:2",
    ],
)
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be tcp://ADDRESS:PORT"):
        tcp_endpoint(text)


def test_topics() -> None:
    assert topic("") == ""
    assert topic("kv@10.0.0.1@model") == "kv@10.0.0.1@model"
    for wrong in ("a\nb", "x" * 201):
        with pytest.raises(argparse.ArgumentTypeError, match="200 printable"):
            topic(wrong)


def test_it_listens_on_ipv6_too(context) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        one = KvPublisher(KvPublishing("tcp://[::1]:0", ANY))
    except CannotPublish as error:
        pytest.skip(str(error))
    try:
        assert one.where.endpoint.startswith("tcp://[::1]:")
        subscribed(context, one)
    finally:
        one.close()
