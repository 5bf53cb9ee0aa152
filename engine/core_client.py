"""The API process's end of the engine: starts the core's process and speaks with it on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from engine.config import EngineConfig
from engine.framing import FrameSplitter, decode_from_core, frame
from engine.keys import without_secrets
from engine.kv_endpoint import KvPublishing
from engine.messages import (
    Abort,
    Add,
    BlockTokens,
    Call,
    ClearCache,
    Fatal,
    FromCore,
    GetBlockTokens,
    GetRequestTokens,
    GetSnapshot,
    KvNews,
    ListRequests,
    Located,
    Output,
    Outputs,
    Pull,
    Pulled,
    Ready,
    Release,
    Reply,
    RequestTokens,
    SetControl,
    Shutdown,
    Start,
    Step,
    Taken,
    ToCore,
)
from engine.protocol import Control, EngineInfo, FinishReason
from engine.transfer.offer import Compatibility
from engine.watchdog import HUNG

Sink = Callable[[Output], None]
Aside = Taken | Pull | KvNews | Output  # an Output only with an offer, of a request that nobody waits for any more
T = TypeVar("T")
WATCH_SECONDS = 1.0  # between two looks at whether the core is silent, at most
IDLE_SECONDS = 0.05  # between two looks at whether requests have ended
LAST_SECONDS = 0.8  # between the end of a core's socket and that of its process, which tells what it died of
_log = logging.getLogger(__name__)
_decode_request_tokens = msgspec.json.Decoder(RequestTokens).decode
_decode_block_tokens = msgspec.json.Decoder(BlockTokens).decode


class Live(NamedTuple):
    """A request that reports to `sink`, as part of the answer that its client knows as `answer`."""

    sink: Sink
    answer: str
    is_search: bool  # by beams: the core tells at its end what it found


class EngineDiedError(Exception):
    """The core's process is gone; the message tells a person how it ended."""

    def __init__(self, message: str, *, unusable: bool = False) -> None:
        super().__init__(message)
        self.unusable = unusable  # a bad setting, not a crash


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What `work` comes to. It goes on when whoever waits for it is cancelled, and what it raises then is nobody's."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


class CallUnansweredError(RuntimeError):
    """An engine has not said in time that it has done what was asked; the message names it."""


class CallFailedError(RuntimeError):
    """The core could not answer, and goes on; the message says why."""


class CallRefusedError(ValueError):
    """The core said no; the message names the field."""


class ControlInForce(NamedTuple):
    """A control, and the first record in which it holds."""

    control: Control
    seq: int


class Cleared(NamedTuple):
    """How many blocks the prefix cache forgot, and the record that tells of it."""

    blocks: int
    seq: int


class Core(Protocol):
    """A core somewhere, and our end of the socket to it: frames, as `engine.framing` makes them. It ends when the
    socket closes, and the socket when it ends."""

    socket: socket.socket
    shares_clock: bool  # whether its monotonic clock is this machine's

    def ending(self) -> str:
        """How it ended, for a person."""
        ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended. Raises TimeoutError."""
        ...

    def stop(self, timeout: float) -> None:
        """Close the socket, wait, and kill what has not ended by then."""
        ...


class CoreProcess:
    """The child process and our end of its socket. It ends when the socket closes."""

    shares_clock = True

    def __init__(self, config: EngineConfig) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "engine.core_process", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # what libraries print there is not our output
                stderr=sys.stderr.fileno(),  # also where ours was closed, and is /dev/null now
                env={**without_secrets(os.environ), "TOKENIZERS_PARALLELISM": "false"},
            )
        self.socket = ours
        ours.sendall(frame(Start(config)))

    def ending(self) -> str:
        """How it ended, for a person."""
        code = self.process.poll()
        if code is None:
            return "the engine process closed its connection"
        if code < 0:
            name = f"signal {-code}"
            with contextlib.suppress(ValueError):  # most real-time signals have no name
                name = signal.Signals(-code).name
            hint = "; perhaps the machine ran out of memory" if -code == signal.SIGKILL else ""
            return f"the engine process was killed by {name}{hint}"
        if code == HUNG:
            return "the engine process ended itself: a step did not end (--step-timeout)"
        return f"the engine process ended with exit code {code}"

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended. Raises TimeoutError."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the engine process has not ended after {timeout} s") from None

    def stop(self, timeout: float) -> None:
        """Close the socket, wait, and kill what has not ended by then."""
        self.socket.close()
        try:
            self.wait(timeout)
        except TimeoutError:
            self.kill()
            self.wait()


class CoreClient:
    """Requests, calls and news over the core's socket. For one event loop; not for threads.

    `on_step` gets each record as (seq, JSON), in order; numbers that are missing were dropped by the core.
    After the core's death every stream ends with an error and every call raises EngineDiedError. A core that says
    nothing for `silence` seconds (0: however long) while somebody waits for it is killed: it may have been stopped.
    `on_aside` gets what is for no sink: of blocks handed over, and of the prefix cache.
    """

    def __init__(
        self,
        core: Core,
        on_step: Callable[[int, bytes], None],
        silence: float = 0.0,
        on_aside: Callable[[Aside], None] = lambda aside: None,
    ) -> None:
        self._core = core
        self._on_aside = on_aside
        self._silence = silence
        self._on_step = on_step
        self._live: dict[str, Live] = {}
        # Who ends with a request: siblings until it has its first token, the other beams of a search always.
        self._tied: dict[str, tuple[str, ...]] = {}
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._next_call = 0
        self._writer: asyncio.StreamWriter | None = None
        self._fatal: Fatal | None = None
        self._draining = False
        self._heard = 0.0  # when something last came of it, or nobody waited for anything
        self._patching = asyncio.Lock()
        self._progress = asyncio.Event()  # it has got on with starting, or has died
        self._located: Located | None = None
        self.info: EngineInfo | None = None  # None until the core is ready
        self.death: EngineDiedError | None = None
        self.in_force: ControlInForce | None = None
        self.kv_events: KvPublishing | None = None  # where they are published, once the core is ready
        self.compatibility: Compatibility | None = None  # of one that can hand over, once it is ready

    @property
    def ready(self) -> bool:
        return self.info is not None and self.death is None

    @property
    def num_live(self) -> int:
        """Requests that have not ended; a beam search counts once."""
        return len(self._live)

    @property
    def quiet(self) -> float:
        """Seconds for which nothing came of it though somebody waits for something: a long step, or it is stopped."""
        return time.monotonic() - self._heard if self._live or self._calls else 0.0

    def drain(self) -> None:
        """Take no more requests."""
        self._draining = True

    async def run(self, on_ready: Callable[[Ready], None]) -> None:
        """Read frames until the socket ends; then fail whatever still waits. The process is gone when this returns:
        the next one needs what it holds."""
        self._core.socket.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=self._core.socket, limit=1 << 20)
        watching = asyncio.create_task(self._watch())
        try:
            await self._read(reader, on_ready)
        except OSError:
            pass
        except Exception as error:  # what comes makes no sense, or whoever is told of it fails: trust neither
            _log.exception("what the engine's process tells cannot be taken")
            self._fatal = Fatal(f"what the engine told could not be taken: {error}", unusable=False)
            self._core.kill()
        finally:
            watching.cancel()
        try:
            await asyncio.to_thread(self._core.wait, LAST_SECONDS)
        except TimeoutError:
            self._core.kill()
        self._fail()
        self._writer.transport.abort()  # the end of what comes does not close it, and cycles are collected rarely
        await asyncio.to_thread(self._core.wait)  # a driver may hold it for long

    async def _read(self, reader: asyncio.StreamReader, on_ready: Callable[[Ready], None]) -> None:
        splitter = FrameSplitter()
        while data := await reader.read(1 << 18):
            self._heard = time.monotonic()
            for body in splitter.feed(data):
                message = decode_from_core(body)
                if isinstance(message, Ready):
                    self.info, self.in_force = message.engine, ControlInForce(message.control, 0)
                    self.kv_events, self.compatibility = message.kv_events, message.compatibility
                    on_ready(message)
                    self._tell_progress()
                else:
                    self._dispatch(message)

    async def _watch(self) -> None:
        """Kill a core that is silent though it has something to say. One that still loads is given its time."""
        while self._silence:
            await asyncio.sleep(min(self._silence / 4, WATCH_SECONDS))
            now = time.monotonic()
            if self.info is None or not (self._live or self._calls):
                self._heard = now
            elif now - self._heard > self._silence:
                self._fatal = Fatal(f"the engine process said nothing for {self._silence:g} s", unusable=False)
                self._core.kill()
                return

    def add(self, message: Add, sink: Sink, answer: str) -> None:
        """Start a request and its siblings; `sink` gets the outputs of each, the last of them with `finished` set.

        Of a beam search only the request itself reports. `answer` is the id that cancels all requests of one answer.
        Raises EngineDiedError if there is no engine, or none that takes more.
        """
        if self._draining:
            raise EngineDiedError("the server is shutting down")
        is_search = message.sampling.beam is not None
        reporting = (message.request, *(() if is_search else message.siblings))
        for request in reporting:
            if request in self._live:
                raise ValueError(f"request {request} lives already")
        self._begin_to_wait()
        self._send(msgspec.structs.replace(message, arrived=time.monotonic() if self._core.shares_clock else None))
        self._live.update(dict.fromkeys(reporting, Live(sink, answer, is_search)))
        if message.siblings:
            self._tied[message.request] = message.siblings

    def abort(self, requests: Sequence[str], reason: FinishReason) -> None:
        """End those of `requests` that live; their sinks hear no more."""
        ended = tuple(request for request in requests if self._live.pop(request, None) is not None)
        for request in ended:
            self._tied.pop(request, None)
        if ended and self.death is None:
            self._send(Abort(ended, reason))

    def release(self, leases: Sequence[str]) -> None:
        """Nobody reads the blocks that this engine offered under these leases."""
        if self.death is None:
            self._send(Release(tuple(leases)))

    def pulled(self, request: str, lease: str, error: str = "") -> None:
        """A `Pull` of this engine's is over; `lease` is its offer's."""
        if self.death is None:
            self._send(Pulled(request, lease, error))

    def cancel(self, name: str) -> tuple[str, ...]:
        """Abort a live request, and whoever cannot go on without it, or all live requests of an answer.

        Unlike with `abort`, their sinks hear of it: that of a beam search from the core, with what it has found.
        Returns who ended: nobody if nothing has that name.
        """
        named = [request for request, live in self._live.items() if name in (request, live.answer)]
        if not named:  # a beam, whose search reports for it?
            named = [leader for leader, others in self._tied.items() if name in others]
        family = dict.fromkeys(one for request in named for one in (request, *self._tied.get(request, ())))
        return self._cancel([one for one in family if one in self._live])

    def _cancel(self, requests: Sequence[str]) -> tuple[str, ...]:
        ended = {one: self._live[one] for one in requests}
        searches = tuple(one for one, live in ended.items() if live.is_search)
        others = tuple(one for one, live in ended.items() if not live.is_search)
        if searches:
            self._send(Abort(searches, "abort"))
        self.abort(others, "abort")
        for one in others:
            ended[one].sink(Output(one, finished="abort"))
        return tuple(ended)

    async def until_located(self) -> Located | None:
        """Wait for the model's files to be here; None if the core died before that."""
        while self._located is None and self.death is None:
            await self._progress.wait()
        return self._located

    async def until_ready(self) -> EngineInfo | None:
        """Wait for the model to be loaded; None if the core died before that."""
        while self.info is None and self.death is None:
            await self._progress.wait()
        return self.info

    async def until_idle(self) -> None:
        """Wait until no request lives."""
        while self._live:
            await asyncio.sleep(IDLE_SECONDS)

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def end_streams(self) -> None:
        """Cancel all requests."""
        self._cancel(tuple(self._live))

    async def snapshot(self) -> Reply:
        """`Reply.json` is a protocol.Snapshot, made between two steps, after record `Reply.seq`."""
        return await self._call(lambda call: GetSnapshot(call))

    async def requests(self) -> bytes:
        """A protocol.LiveRequests as JSON, of between two steps."""
        return (await self._call(ListRequests)).json

    async def request_tokens(self, request: str, first: int, before: int) -> tuple[int, RequestTokens] | None:
        """A live request's tokens from place `first` on after the record that comes with them, with up to `before`
        tokens that lie before; None if no such request lives."""
        reply = await self._call(lambda call: GetRequestTokens(call, request, first, before))
        return None if reply.error is not None else (reply.seq, _decode_request_tokens(reply.json))

    async def block_tokens(self, block: int, before: int) -> tuple[int, BlockTokens]:
        """The same of a block that the pool has."""
        reply = await self._call(lambda call: GetBlockTokens(call, block, before))
        return reply.seq, _decode_block_tokens(reply.json)

    async def clear_cache(self) -> Cleared:
        """Forget every cached prefix."""
        reply = await self._call(lambda call: ClearCache(call))
        return Cleared(msgspec.json.decode(reply.json, type=int), reply.seq)

    async def patch_control(self, change: Callable[[Control], Control]) -> ControlInForce:
        """Change the control; calls take turns, so that none undoes another. Raises CallRefusedError.

        A caller who is cancelled meanwhile does not call the change off: the core may have made it already.
        """
        return await to_its_end(self._patch_in_turn(change))

    async def _patch_in_turn(self, change: Callable[[Control], Control]) -> ControlInForce:
        async with self._patching:
            wanted = change(self._control)
            reply = await self._call(lambda call: SetControl(call, wanted))
            if reply.error is not None:
                raise CallRefusedError(reply.error)
            self.in_force = ControlInForce(wanted, reply.seq)
            return self.in_force

    async def shutdown(self, timeout: float = 3.0) -> None:
        """Ask the core to end, and see that it does."""
        with contextlib.suppress(EngineDiedError, OSError):
            self._send(Shutdown())
        with contextlib.suppress(TimeoutError):
            # One that still loads does not listen yet, and has nothing to lose.
            await asyncio.to_thread(self._core.wait, timeout if self.info is not None else 0)
        if self._writer is not None:
            self._writer.transport.abort()
        await asyncio.to_thread(self._core.stop, 1.0 if self.info is not None else 0)
        if self.death is None:  # nobody reads what comes of it any more, who would tell those that wait
            self._fail()

    @property
    def _control(self) -> Control:
        if self.in_force is None:
            raise EngineDiedError("the engine is not ready")
        return self.in_force.control

    def _send(self, message: ToCore) -> None:
        if self.death is not None:
            raise self.death
        if self._writer is None:
            raise EngineDiedError("the engine is not connected yet")
        self._writer.write(frame(message))

    def _begin_to_wait(self) -> None:
        if not (self._live or self._calls):
            self._heard = time.monotonic()

    async def _call(self, make: Callable[[int], Call]) -> Reply:
        self._begin_to_wait()
        self._next_call += 1
        call = self._next_call
        self._send(make(call))
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        try:
            reply = await future
        finally:
            self._calls.pop(call, None)
        if reply.failed:
            raise CallFailedError(reply.failed)
        return reply

    def _dispatch(self, message: FromCore) -> None:
        match message:
            case Outputs(outputs):
                for output in outputs:
                    self._deliver(output)
            case Step(seq, json):
                self._on_step(seq, json)
            case Reply(call):
                future = self._calls.get(call)
                if future is not None and not future.done():
                    future.set_result(message)
            case Taken() | Pull() | KvNews():
                self._on_aside(message)
            case Fatal():
                self._fatal = message
            case Located():
                self._located = message
                self._tell_progress()
            case Ready():
                raise ValueError("the core was ready twice")

    def _deliver(self, output: Output) -> None:
        live = self._live.get(output.request)
        if live is None:  # it was aborted here, and that had not reached the core yet
            if output.offer is not None:
                self._on_aside(output)
            return
        if output.finished is not None:
            del self._live[output.request]
        if output.finished is not None or output.token_id is not None:
            self._tied.pop(output.request, None)
        live.sink(output)

    def _fail(self) -> None:
        if self._fatal is not None:
            self.death = EngineDiedError(self._fatal.message, unusable=self._fatal.unusable)
        else:
            self.death = EngineDiedError(self._core.ending())
        ended, self._live, self._tied = self._live, {}, {}
        for request, live in ended.items():
            live.sink(Output(request, finished="error", error=str(self.death), unavailable=True))
        for future in self._calls.values():
            if not future.done():
                future.set_exception(self.death)
        self._tell_progress()
