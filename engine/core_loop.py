"""The core process's main loop: messages in, steps, news out. It stops at the first sign that the books are wrong."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.block_pool import IllegalState
from engine.books import check_books, check_totals
from engine.contents import block_tokens, live_requests, request_tokens
from engine.faults import Faults
from engine.flight_recorder import FlightRecorder
from engine.framing import BadFrame
from engine.kv_news import kv_news
from engine.log import event
from engine.messages import (
    Abort,
    Add,
    BlockTokens,
    Call,
    ClearCache,
    GetBlockTokens,
    GetRequestTokens,
    GetSnapshot,
    ListRequests,
    Output,
    Outputs,
    Pulled,
    Release,
    Reply,
    RequestTokens,
    SetControl,
    Shutdown,
    Start,
    Step,
    ToCore,
)
from engine.protocol import LiveRequests, Record, encode
from engine.sender import Sender
from engine.transfer.parent import ParentConnector
from engine.watchdog import Watchdog

if TYPE_CHECKING:
    from engine.core import EngineCore
    from engine.kv_events import KvEvent

IDLE_SECONDS = 0.05  # requests wait but none can run: look again
ENTRIES_EVERY = 10  # of the checks of the books, one looks at every entry, the others at the sums


class Wake(NamedTuple):
    """Put into the inbox by a connector's thread: a transfer has ended, and `poll` tells which."""


Incoming = ToCore | BadFrame | Wake | None  # None: the API process is gone
_log = logging.getLogger(__name__)


class CoreLoop:
    """`run` returns when it was told to end, or nobody is there any more. Whatever it raises says that the engine
    cannot go on: nothing is computed or told after that."""

    def __init__(
        self,
        core: EngineCore,
        inbox: queue.SimpleQueue[Incoming],
        sender: Sender,
        recorder: FlightRecorder,
        watchdog: Watchdog,
        faults: Faults,
        check_every: int,
        publish_kv: Callable[[Sequence[KvEvent]], None] | None = None,
        *,
        tell_kv: bool = False,
    ) -> None:
        self._core = core
        self._inbox = inbox
        self._sender = sender
        self._recorder = recorder
        self._watchdog = watchdog
        self._faults = faults
        self._check_every = check_every
        self._publish_kv = publish_kv
        self._tells_kv = tell_kv  # to whoever started the engine
        self._steps = 0  # that did something
        self._fault = False  # in the last of them
        self._running = True
        self._idle = True  # the last step did nothing: wait for a frame

    def run(self) -> None:
        while self._running:
            self._drain()
            if self._running:
                self._step()

    def _drain(self) -> None:
        """Take what has come; wait only if there is nothing to step."""
        if self._idle:
            timeout = IDLE_SECONDS if self._core.has_work else None
            with contextlib.suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=timeout))
        while self._running:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(message)

    def _step(self) -> None:
        self._watchdog.begin()
        record = None
        try:
            self._faults.before_step(self._core)
            outputs, record = self._core.step()
        finally:
            self._watchdog.end(computed=record is not None and bool(record.rows))
        self._idle = not outputs and record is None
        if not self._idle:
            self._check(record)
            if outputs:
                self._sender.send(Outputs(outputs))
            self._tell(record)
        for taken in self._core.drain_taken():
            self._sender.send(taken)
        self._tell_kv_events()

    def _check(self, record: Record | None) -> None:
        """Look at the books, if it is time or something went wrong: raises InvariantViolated.

        That is a fault with none before it, or that cost an answer: memory may be short in every step from now on.
        """
        self._steps += 1
        before, self._fault = self._fault, record is not None and bool(record.fault)
        cost = record is not None and any(one.reason == "error" for one in record.left)
        failed = self._fault and (cost or not before)
        due = self._check_every and self._steps % self._check_every == 0
        if failed or (due and self._steps // self._check_every % ENTRIES_EVERY == 0):
            check_books(self._core.scheduler, self._core.ledger)
        elif due:
            check_totals(self._core.scheduler, self._core.ledger)

    def _tell(self, record: Record | None) -> None:
        """Send a record that was just made: nothing has changed since."""
        if record is None:
            return
        told = encode(record)
        self._sender.send(Step(record.seq, told))
        self._recorder.take(told)
        if self._recorder.is_full:
            self._recorder.begin(self._core.snapshot())

    def _tell_kv_events(self) -> None:
        if self._publish_kv is None and not self._tells_kv:
            return
        events = self._core.drain_kv_events()
        if events and self._publish_kv is not None:
            self._publish_kv(events)
        if self._tells_kv and (news := kv_news(events)) is not None:
            self._sender.send(news)

    def _handle(self, message: Incoming) -> None:
        match message:
            case Add():
                self._add(message)
            case Abort(requests, reason):
                for request in requests:
                    try:
                        self._core.abort(request, reason)
                    except Exception as error:
                        self._survive(f"request {request} could not be ended", error)
            case Shutdown() | None:
                self._running = False
            case BadFrame():
                raise message
            case Release(leases):
                self._core.release(leases)
            case Pulled():
                if isinstance(self._core.connector, ParentConnector):  # else it is of an engine before this one
                    self._core.connector.pulled(message)
            case Wake():
                pass
            case Start():
                raise BadFrame("the engine was told to start twice")
            case _:
                self._answer(message)

    def _add(self, message: Add) -> None:
        """Queue a request, or tell whoever reports for it why not. An exception that nobody expects costs this request
        alone, unless it has left the books in disorder."""
        reporting = (message.request, *(() if message.sampling.beam else message.siblings))
        if self._core.tells_an_end_of((message.request, *message.siblings)):  # handed over, it comes back
            self._tell(self._core.flush())
        try:
            self._core.add(
                message.request,
                message.prompt,
                message.sampling,
                message.scheduling,
                message.siblings,
                arrived=message.arrived,
                hand_over=message.hand_over,
                offer=message.offer,
                generated=message.generated,
                places=message.places,
            )
        except ValueError as error:  # RequestTooLarge: it could never run
            told, refused = str(error), True
        except Exception as error:
            self._survive(f"request {message.request} could not be queued", error)
            for one in (*message.siblings, message.request):  # if it was, whoever waits for it is told of this alone
                self._core.abort(one)
            told, refused = f"the engine could not take this request ({type(error).__name__})", False
        else:
            return
        ended = (Output(one, finished="error", error=told, refused=refused) for one in reporting)
        self._sender.send(Outputs(tuple(ended)))

    def _survive(self, what: str, error: Exception) -> None:
        """Go on after an exception if it has left the books in order; raise it again if it says itself that it has not.

        Raises InvariantViolated if they are not.
        """
        if isinstance(error, IllegalState):
            raise error
        check_books(self._core.scheduler, self._core.ledger)
        event(_log, logging.ERROR, "message_failed", f"{what}; the engine goes on", error=error)

    def _answer(self, message: Call) -> None:
        """Answer a call, if only with what went wrong."""
        try:
            reply = self._reply(message)
        except Exception as error:
            self._survive(f"{type(message).__name__} could not be answered", error)
            failed = f"the engine could not answer: {type(error).__name__}: {error}"
            reply = Reply(message.call, self._core.seq, failed=failed)
        self._sender.send(reply)

    def _reply(self, message: Call) -> Reply:
        core = self._core
        if isinstance(message, SetControl):
            try:
                seq = core.set_control(message.control)
            except ValueError as error:  # ControlError
                return Reply(message.call, 0, error=str(error))
            return Reply(message.call, seq, encode(core.control))
        found: LiveRequests | RequestTokens | BlockTokens | int | None
        if isinstance(message, ClearCache):
            cleared = core.clear_cache()
        self._tell(core.flush())  # what is told below is as of after the last record
        self._tell_kv_events()
        match message:
            case GetSnapshot(call):
                return Reply(call, core.seq, encode(core.snapshot()))
            case ListRequests():
                found = live_requests(core.scheduler, core.seq)
            case GetRequestTokens(_, request, first, before):
                found = request_tokens(core.scheduler, request, first, before)
            case GetBlockTokens(_, block, before):
                found = block_tokens(core.scheduler, block, before)
            case ClearCache():
                found = cleared
        return Reply(message.call, core.seq, encode(found), "nothing has that name" if found is None else None)
