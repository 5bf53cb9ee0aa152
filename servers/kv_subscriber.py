"""Hear a publisher of KV events over ZMQ, in order, as `Heard`, `Missed` and `Restarted`.

A publisher numbers its messages from 0. What is missing in between is asked for again where it has a replay socket. A
number that falls means that it restarted. One that restarted while nobody was connected, and has got past the last
number that was heard, shows by the replay alone, where the last message is not the one that was heard; without a replay
socket it looks like a gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal

from servers.kv_events import MAX_PAYLOAD, BadEvents, Heard, Message, Missed, Restarted, decode

if TYPE_CHECKING:
    import zmq.asyncio

DEFAULT_PORT = 5557  # of rank 0; each further data-parallel rank has the next
QUEUED = 10_000  # live messages that wait while a replay is read; beyond them the publisher drops
SILENCE = 2.0  # seconds after which a replay socket that says nothing is given up
REST = 30.0  # seconds until a gap is asked for again then: live messages wait for the answer
END = -1  # the number that ends a replay
MOST = 1 << 40  # messages: no publisher gets there, at ten thousand a second not in years

Link = Literal["connecting", "connected"]

log = logging.getLogger(__name__)


def subscribe(
    endpoint: str, replay: str | None = None, topic: str = "", told: Callable[[Link], None] | None = None
) -> AsyncGenerator[Message, None]:
    """Messages for ever, through reconnects; closing the generator or cancelling its reader closes the sockets.

    `replay` is the endpoint that sends past messages again, where there is one. `topic` is what topics begin with.
    `told` is called as the connection comes and goes. Raises ValueError for an endpoint that nobody can connect to, at
    once or with the first message.
    """
    for one in (endpoint, replay):
        if one is not None:
            _check(one)
    return _Subscriber(endpoint, replay, topic, told).messages()


def _check(endpoint: str) -> None:
    scheme, _, address = endpoint.partition("://")
    host, _, port = address.rpartition(":")
    if scheme == "tcp" and host == "*":
        raise ValueError(f"{endpoint!r} is where a server listens; name its host, as tcp://host:{port}")
    to_port = host and port.isdecimal() and 0 < int(port) < 65_536
    if not (to_port if scheme == "tcp" else scheme == "ipc" and address):
        raise ValueError(f"tcp://host:{DEFAULT_PORT} or ipc://path is wanted, {endpoint!r} came")


class _Subscriber:
    """`_next` is the number that is wanted next, 0 as long as none was heard; `_last` the message before, by its hash.

    `_live` is the number that came last from the publishing socket. Those that it sends though the replay had them
    already are told from a restart by `_replayed`, hashes of what came by replay.

    `_stale`: the replay is of a publisher that began after the live messages that are read now were sent. Those that it
    does not have are of the one before, and passed over.
    """

    def __init__(self, endpoint: str, replay: str | None, topic: str, told: Callable[[Link], None] | None) -> None:
        self._endpoint, self._replay, self._topic, self._told = endpoint, replay, topic, told
        self._next = 0
        self._last = 0
        self._live = -1
        self._replayed: OrderedDict[int, int] = OrderedDict()
        self._stale = False
        self._gave_up = False
        self._rests_until = 0.0

    async def messages(self) -> AsyncGenerator[Message, None]:
        import zmq  # only who subscribes needs it
        import zmq.asyncio

        context = zmq.asyncio.Context.instance()
        socket = context.socket(zmq.SUB)
        monitor: zmq.asyncio.Socket | None = None
        watching: asyncio.Task[None] | None = None
        try:
            _prepare(socket)
            socket.setsockopt_string(zmq.SUBSCRIBE, self._topic)
            if self._told is not None:
                events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
                monitor = socket.get_monitor_socket(events)
                watching = asyncio.create_task(_watch(monitor, self._told))
            _connect(socket, self._endpoint)
            async with aclosing(self._again()) as past:
                async for message in past:
                    yield message
            while True:
                found = _parse(await socket.recv_multipart())
                if watching is not None and watching.done():
                    watching.result()  # what is told of the connection failed: not silently
                if found is None or found[0] == END:
                    log.debug("%s: a message that has no number", self._endpoint)
                    continue
                async with aclosing(self._hear(*found)) as heard:
                    async for message in heard:
                        yield message
        finally:
            if watching is not None and monitor is not None:
                watching.cancel()
                socket.disable_monitor()
                monitor.close(linger=0)
            socket.close(linger=0)

    async def _hear(self, number: int, payload: bytes) -> AsyncGenerator[Message, None]:
        """Take a live message: what came before it is asked for, what came already is passed over."""
        came_already = number < self._next and self._replayed.get(number) == hash(payload)
        if self._stale and (came_already or self._live < number < self._next):
            self._live, self._stale = number, not came_already
            return
        if self._stale and number <= self._live:  # now they are of the one that was replayed, or of one after it
            self._live, self._stale = -1, False
        if number <= self._live or (number < self._next and not came_already):
            if number == self._live and number == self._next - 1 and hash(payload) == self._last:
                return  # the same once more
            self._restart()
            yield Restarted()
        in_doubt = number > self._next or (self._stale and number == self._next)
        if in_doubt and asyncio.get_running_loop().time() >= self._rests_until:
            async with aclosing(self._again()) as past:
                async for message in past:
                    yield message
            if self._gave_up:
                self._rests_until = asyncio.get_running_loop().time() + REST
        self._live = number
        if number < self._next:
            self._stale = self._replayed.get(number, hash(payload)) != hash(payload)
            return
        if self._stale and not self._gave_up:
            return
        self._stale = False
        for message in self._take(number, payload):
            yield message

    def _take(self, number: int, payload: bytes) -> list[Message]:
        """The message, and before it what was missed. Before the first that is heard nothing is: it was not meant."""
        out: list[Message] = []
        if number > self._next > 0:
            out.append(Missed(self._next, number - 1))
        self._next, self._last = number + 1, hash(payload)
        try:
            out.append(Heard(number, decode(payload)))
        except BadEvents as error:
            log.debug("%s: message %d: %s", self._endpoint, number, error)
            out.append(Missed(number, number))
        return out

    def _restart(self) -> None:
        self._next, self._live, self._stale = 0, -1, False
        self._replayed.clear()

    async def _again(self) -> AsyncGenerator[Message, None]:
        """What the replay socket has from the last message on. It is asked again while its answers break off.

        A ROUTER socket drops what a reader does not take fast enough, so a long answer may have holes, or no end.
        """
        self._gave_up = ended = self._replay is None
        while not ended:
            begun, silent = self._next, True
            async with aclosing(self._ask(max(begun - 1, 0))) as answer:
                async for found in answer:
                    silent = False
                    if found is None:
                        ended = True
                        break
                    number, payload = found
                    if number == begun - 1 and begun == self._next and hash(payload) != self._last:
                        self._restart()
                        self._stale = True
                        yield Restarted()
                        break
                    if number < self._next:
                        continue
                    if number > self._next > begun:
                        break  # a hole after some that came: ask from there
                    for message in self._take(number, payload):
                        yield message
                    self._replayed[number] = hash(payload)
                    if len(self._replayed) > QUEUED:
                        self._replayed.popitem(last=False)
            if silent or (not ended and self._next == begun):
                self._gave_up = True
                return

    async def _ask(self, first: int) -> AsyncGenerator[tuple[int, bytes] | None, None]:
        """The messages of one answer, then None for its end; without that where the socket fell silent."""
        import zmq
        import zmq.asyncio

        assert self._replay is not None
        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        try:
            _prepare(socket)
            _connect(socket, self._replay)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            while await socket.poll(int(SILENCE * 1000)):
                frames = await socket.recv_multipart()
                found = _parse(frames)
                if not any(frames) or (found is not None and found[0] == END):
                    yield None
                    return
                if found is not None:
                    yield found
        finally:
            socket.close(linger=0)


def _prepare(socket: zmq.asyncio.Socket) -> None:
    import zmq

    options = {
        zmq.LINGER: 0,
        zmq.IPV6: 1,
        zmq.RCVHWM: QUEUED,
        zmq.MAXMSGSIZE: MAX_PAYLOAD,
        zmq.RECONNECT_IVL: 200,  # ms, doubled up to
        zmq.RECONNECT_IVL_MAX: 5_000,
        zmq.HEARTBEAT_IVL: 10_000,  # a connection that is dead without a word is noticed and made anew
        zmq.HEARTBEAT_TIMEOUT: 30_000,
    }
    for option, value in options.items():
        socket.setsockopt(option, value)


def _connect(socket: zmq.asyncio.Socket, endpoint: str) -> None:
    """Raises ValueError where ZMQ finds that nobody can; a host that is not found is looked for again instead."""
    import zmq

    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ValueError(f"{endpoint[:80]}: cannot be connected to: {error.strerror}") from None


def _parse(frames: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Number and payload: the last two frames. Before them a topic, in answers also an empty frame, or neither."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    number = int.from_bytes(frames[-2], "big", signed=True)
    return (number, frames[-1]) if END <= number < MOST else None


async def _watch(monitor: zmq.asyncio.Socket, told: Callable[[Link], None]) -> None:
    import zmq
    from zmq.utils.monitor import recv_monitor_message

    while True:
        event = (await recv_monitor_message(monitor))["event"]
        told("connected" if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else "connecting")
