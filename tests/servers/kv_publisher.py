"""A publisher of KV events as vLLM and SGLang have one, for tests: real ZMQ on 127.0.0.1, in any of their encodings.

`PrefixCache` beside it is a cache that tells what it does, so that a reader can be compared with it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
import zmq

from servers.kv_events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KvEvent

# arrays: vLLM until 2026 and SGLang, each event a list that begins with its type; maps: later, each event a map;
# all maps: one version that has the batch as a map too.
Encoding = Literal["arrays", "maps", "all maps"]
ENCODINGS: tuple[Encoding, ...] = ("arrays", "maps", "all maps")
END = (-1).to_bytes(8, "big", signed=True)
PATIENCE = 10.0  # seconds


def encode(events: Sequence[KvEvent], encoding: Encoding, at: float, rank: int | None = None) -> bytes:
    """A message's last frame. Fields that are not told are left out at an array's end, as the real ones do."""
    if encoding == "all maps":
        outer: Any = {"ts": at, "events": [_map(event) for event in events]}
        outer |= {} if rank is None else {"data_parallel_rank": rank}
    else:
        outer = [at, [_array(event) if encoding == "arrays" else _map(event) for event in events]]
        outer += [] if rank is None else [rank]
    return msgspec.msgpack.encode(outer)


def _map(event: KvEvent) -> dict[str, Any]:
    out: dict[str, Any] = {"type": type(event).__name__}
    if isinstance(event, AllBlocksCleared):
        return out
    out |= {"block_hashes": list(event.hashes)}
    if isinstance(event, BlockStored):
        out |= {"parent_block_hash": event.parent, "token_ids": list(event.token_ids), "block_size": event.block_size}
        out |= {"lora_id": None, "lora_name": event.lora, "session_id": "of a later version"}
    out |= {"medium": event.medium}
    return out if event.group is None else out | {"group_idx": event.group}


def _array(event: KvEvent) -> list[Any]:
    if isinstance(event, AllBlocksCleared):
        return ["AllBlocksCleared"]
    if isinstance(event, BlockRemoved):
        out = ["BlockRemoved", list(event.hashes), event.medium, event.group]
    else:
        out = ["BlockStored", list(event.hashes), event.parent, list(event.token_ids), event.block_size]
        out += [None, event.medium, event.lora, None, event.group]
    while out[-1] is None and len(out) > (2 if isinstance(event, BlockRemoved) else 6):
        out.pop()
    return out


class KvPublisher:
    """Publishes on free ports; `publish` by one thread alone. Change its attributes while it runs.

    `topic_in_answers`: whether answers of the replay socket have the topic, as vLLM's since 2026, or not, as SGLang's.
    `answers`: "all"; "none": it is silent; "no end": without the last one; `holes`: numbers that answers leave out,
    once each. `buffered` messages can be had again.
    """

    def __init__(
        self,
        encoding: Encoding = "maps",
        topic: str = "",
        rank: int | None = None,
        replay: bool = False,
        buffered: int = 10_000,
    ) -> None:
        self.encoding, self.topic, self.rank = encoding, topic, rank
        self.topic_in_answers = True
        self.answers: Literal["all", "none", "no end"] = "all"
        self.holes: set[int] = set()
        self.asked: list[int] = []  # first numbers
        self.sequence = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffered)
        self._lock = threading.Lock()
        self._context = zmq.Context()
        self._publishes = self._bind(zmq.XPUB, "tcp://127.0.0.1:*")  # a PUB that also tells who subscribes
        self.subscriptions = 0
        self.endpoint: str = self._publishes.last_endpoint.decode()
        self.replay_endpoint: str | None = None
        self._stop = threading.Event()
        self._answering: threading.Thread | None = None
        if replay:
            self._start_replay("tcp://127.0.0.1:*")

    def publish(
        self, *events: KvEvent, at: float | None = None, drop: bool = False, payload: bytes | None = None
    ) -> int:
        """Send a message and return its number. `drop`: it is lost on the way; `payload`: instead of events."""
        if not payload:
            payload = encode(events, self.encoding, time.time() if at is None else at, self.rank)
        number, self.sequence = self.sequence, self.sequence + 1
        if not drop:
            self.send(self.topic.encode(), number.to_bytes(8, "big"), payload)
        with self._lock:
            self._buffer.append((number, payload))
        return number

    def send(self, *frames: bytes) -> None:
        self._publishes.send_multipart(frames)

    def lose(self, count: int) -> None:
        """Numbers that are never sent, nor can be had again."""
        self.sequence += count

    def wait_for_subscriber(self, count: int = 1) -> None:
        """Until so many have subscribed since the beginning or the restart. Raises TimeoutError."""
        until = time.monotonic() + PATIENCE
        while self.subscriptions < count:
            if not self._publishes.poll(100):
                if time.monotonic() > until:
                    raise TimeoutError(f"{self.subscriptions} of {count} subscribed")
                continue
            self.subscriptions += self._publishes.recv_multipart()[0][:1] == b"\x01"

    def restart(self, sequence: int = 0) -> None:
        """Another process at the same endpoints, that has forgotten everything. `sequence`: where it has got by now."""
        self._publishes.close(linger=200)
        self._end_replay()
        self._publishes = self._bind(zmq.XPUB, self.endpoint)
        self.sequence, self.subscriptions = sequence, 0
        with self._lock:
            self._buffer.clear()
        if self.replay_endpoint is not None:
            self._start_replay(self.replay_endpoint)

    def close(self) -> None:
        self._end_replay()
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bind(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        if kind == zmq.XPUB:
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)
            socket.setsockopt(zmq.SNDHWM, 100_000)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                socket.bind(endpoint)
                return socket
            except zmq.ZMQError:  # the one before is not closed yet
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def _start_replay(self, endpoint: str) -> None:
        socket = self._bind(zmq.ROUTER, endpoint)
        self.replay_endpoint = socket.last_endpoint.decode()
        self._stop.clear()
        self._answering = threading.Thread(target=self._answer_all, args=(socket,), daemon=True)
        self._answering.start()

    def _end_replay(self) -> None:
        if self._answering is not None:
            self._stop.set()
            self._answering.join(PATIENCE)

    def _answer_all(self, socket: zmq.Socket[bytes]) -> None:
        with suppress(zmq.ContextTerminated):
            while not self._stop.is_set():
                if socket.poll(20):
                    self._answer(socket, socket.recv_multipart())
        socket.close(linger=0)

    def _answer(self, socket: zmq.Socket[bytes], question: list[bytes]) -> None:
        client, empty, wanted = question
        assert empty == b""
        first = int.from_bytes(wanted, "big")
        self.asked.append(first)
        if self.answers == "none":
            return
        with self._lock:
            kept = [(number, payload) for number, payload in self._buffer if number >= first]
        topic = [self.topic.encode()] if self.topic_in_answers else []
        for number, payload in kept:
            if number in self.holes:
                self.holes.remove(number)
            else:
                socket.send_multipart([client, b"", *topic, number.to_bytes(8, "big"), payload])
        if self.answers == "all":
            socket.send_multipart([client, b"", *([b""] if topic else []), END, b""])


class PrefixCache:
    """A model of an engine's prefix cache, driven by chance: `blocks` is what it has, by hash.

    Each block has the media that have it, with how many copies. `step` does some things and returns what it tells.
    """

    def __init__(self, chance: random.Random, media: Sequence[str | None] = (None,), group: int | None = None) -> None:
        self.chance, self.media_names, self.group = chance, media, group
        self.media: dict[BlockHash, dict[str | None, int]] = {}
        self.parents: dict[BlockHash, BlockHash | None] = {}  # of all blocks that there ever were
        self.evicted: set[BlockHash] = set()  # since everything was cleared
        self.kept: dict[BlockHash, tuple[int, ...]] = {}  # their token ids
        self._made = 0

    def step(self, leaves_first: bool = True, block_size: int = 4) -> tuple[KvEvent, ...]:
        events: list[KvEvent] = []
        for _ in range(self.chance.randint(1, 4)):
            does = self.chance.random()
            if does < 0.55 or not self.media:
                events += self._store(block_size)
            elif does < 0.99:
                events += self._remove(leaves_first)
            else:
                self.media.clear()
                self.evicted.clear()
                events.append(AllBlocksCleared())
        return tuple(events)

    def _store(self, block_size: int) -> list[KvEvent]:
        """A prompt that goes on from a block or begins anew; now and then out of order, or what there was before."""
        parent = self.chance.choice([None, *self.media])
        came_back = [one for one in self.parents if one not in self.media and self.chance.random() < 0.3]
        if came_back:
            hashes, parent = [came_back[0]], self.parents[came_back[0]]
        elif self.media and self.chance.random() < 0.15:
            hashes = [self.chance.choice(list(self.media))]  # computed twice
            parent = self.parents[hashes[0]]
        else:
            hashes = [self._hash() for _ in range(self.chance.randint(1, 5))]
        medium = self.chance.choice(self.media_names)
        before = parent
        for one in hashes:
            self.parents[one] = before
            self.kept.setdefault(one, tuple(self.chance.randrange(50_000) for _ in range(block_size)))
            self.evicted.discard(one)
            held = self.media.setdefault(one, {})
            held[medium] = held.get(medium, 0) + 1
            before = one
        cut = self.chance.randint(0, len(hashes) - 1)
        parts = [(hashes[:cut], parent), (hashes[cut:], hashes[cut - 1] if cut else parent)]
        if self.chance.random() < 0.3:
            parts.reverse()  # a child before its parent
        return [
            BlockStored(
                tuple(part), first, tuple(token for one in part for token in self.kept[one]), block_size, None, medium,
                self.group,
            )
            for part, first in parts
            if part
        ]  # fmt: skip

    def _remove(self, leaves_first: bool) -> list[KvEvent]:
        parents = {self.parents[one] for one in self.media}
        can = [one for one in self.media if not leaves_first or one not in parents] or list(self.media)
        gone = self.chance.choice(can)
        medium = self.chance.choice(list(self.media[gone]))
        self.media[gone][medium] -= 1
        if not self.media[gone][medium]:
            del self.media[gone][medium]
        if not self.media[gone]:
            del self.media[gone]
            self.evicted.add(gone)
        return [BlockRemoved((gone,), medium, self.group)]

    def _hash(self) -> BlockHash:
        self._made += 1
        kind = self.chance.randrange(3)
        if kind == 0:
            return self.chance.randbytes(32)
        return self.chance.randrange(2**63, 2**64) if kind == 1 else -self.chance.randrange(1, 2**63)
