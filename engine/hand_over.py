"""Requests that one engine has prefilled and another goes on with; a connector (`engine.transfer`) moves their KV.

On the one side such a request is `sending` once its first token is drawn: it has left the batch, and its blocks are
kept until whoever takes them says that it has them, or the lease ends. On the other side it waits with the offer, then
it is `receiving`: it has blocks whose contents are on their way, and joins the batch when they have come. What does not
come is computed again. A request that was to share what is offered with its siblings and ends first stays for that.

Whatever a connector raises costs time alone: what it does not offer goes on here, what it does not take is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine.admission import cached_prefix, tell_joined
from engine.attempt import one_line
from engine.block_pool import IllegalState
from engine.forks import Drawn, Endings, join, part
from engine.kv_manager import NOTHING, Prefix, blocks_for
from engine.messages import Taken
from engine.protocol import HAS_ENDED, FinishReason, Offered, Receiving, Transferred, Wait
from engine.request import Request
from engine.transfer.connector import Ended, KVConnector, Transfer, Unavailable
from engine.transfer.offer import Offer

if TYPE_CHECKING:
    from engine.scheduler import Scheduler

MOST_FAILURES = 3  # times in a row that nobody can tell whether blocks are still written

logger = logging.getLogger(__name__)


class Incoming(msgspec.Struct, frozen=True):
    """KV that another engine has of a request: `told` is when this one got to know, `since` from when on it had blocks
    for it. Of its tokens the first `prefix` were found here, and `tokens` in all will have come."""

    offer: Offer
    told: float
    since: float | None = None
    prefix: Prefix = NOTHING
    tokens: int = 0


class Part(NamedTuple):
    """This engine's part in a request, where others have theirs: as `engine.messages.Add` has it."""

    hand_over: bool = False
    offer: Offer | None = None
    generated: Sequence[Sequence[int]] = ()
    places: Sequence[int] = ()

    def check(self, prompt_tokens: int, family: int, *, hands_over: bool, is_search: bool) -> None:
        """Raise ValueError for what makes no sense, of a request and its siblings, `family` in all."""
        if is_search and (self.hand_over or self.generated or self.offer is not None):
            raise ValueError("a beam search is not handed over: its beams are of one engine")
        if self.hand_over and not hands_over:
            raise ValueError("hand_over: this engine hands no KV over")
        if self.hand_over and (any(self.generated) or self.offer is not None):
            raise ValueError("hand_over: a request is handed over with its first token, and this one has some")
        for field in ("generated", "places"):
            if (count := len(getattr(self, field))) not in (0, family):
                raise ValueError(f"{field}: there must be one for each of {family} requests, not {count}")
        if self.offer is None:
            return
        if not self.generated or not all(self.generated):
            raise ValueError("offer: what is offered is the KV of requests that have generated a token at least")
        most = prompt_tokens if family > 1 else prompt_tokens + len(self.generated[0]) - 1
        if not 1 <= self.offer.tokens <= most:
            raise ValueError(f"offer: it must be of 1 to {most} tokens, not {self.offer.tokens}")


class HandOver:
    """The requests of a scheduler that wait for another engine, and what that one has been told or is to be told.

    Everything is called between two steps, or while one is planned or committed. Without a connector nothing is ever
    sent or received.
    """

    def __init__(self, scheduler: Scheduler, connector: KVConnector | None, lease_seconds: float) -> None:
        self.connector = connector
        self.receiving: dict[Request, None] = {}
        self.sending: dict[str, Request] = {}  # by lease; the first ends first
        self.joined: set[Request] = set()  # since the last step: they are not preempted before their first one
        self.taken: list[Taken] = []  # to be told
        self._scheduler = scheduler
        self._lease_seconds = lease_seconds
        self._failures = 0  # of polls, in a row

    @property
    def is_waited_for(self) -> bool:
        """Whether blocks are held that will be free, or requests will run, without any step."""
        return bool(self.receiving or self.sending)

    def poll(self, now: float) -> None:
        """Take note of transfers and leases that have ended.

        Raises what the connector does when it cannot tell for the third time: its blocks are lost to this engine.
        """
        self.joined.clear()
        if self.connector is None:
            return
        while self.sending:
            lease, request = next(iter(self.sending.items()))
            assert request.outgoing is not None
            if request.outgoing.deadline > now:
                break
            self._close(lease, now, f"nobody took the blocks within {self._lease_seconds:g} s")
        for ended in self._ended() if self.receiving else ():
            self._arrived(ended, now)

    def _ended(self) -> Sequence[Ended]:
        assert self.connector is not None
        try:
            ended = self.connector.poll()
        except Exception as error:
            self._failures += 1
            if self._failures == MOST_FAILURES:
                raise
            _tell("asking for the ends of transfers", error)
            return ()
        self._failures = 0
        return ended

    # Sending

    def offer(
        self,
        request: Request,
        own: FinishReason | None,
        family: Sequence[Drawn],
        now: float,
        ended: Endings,
    ) -> bool:
        """Offer the KV of a request whose prompt was computed to whoever goes on with it, or with those that were drawn
        with it: `own` is how it ends itself. False if nobody goes on, or nothing can be offered: all go on here."""
        if own is not None and all(early or reason for _, early, reason in family):
            return False
        scheduler, tokens = self._scheduler, request.num_computed
        blocks = tuple(request.table[: blocks_for(tokens, scheduler.kv.block_size)])
        assert self.connector is not None
        try:
            offer = self.connector.export(request.id, blocks, tokens, now + self._lease_seconds)
        except Exception as error:
            _tell(f"offering the KV of request {request.id}", error)
            for one in (request, *(child for child, _, _ in family)):
                one.hand_over = False
            return False
        for child, early, reason in family:
            ended[child.id] = early or reason or "handed_over"
            scheduler.end(child, ended[child.id])
        scheduler.running.remove(request)
        request.outgoing = offer
        request.reason = ended[request.id] = own or "handed_over"
        self.sending[offer.lease] = request
        nbytes = len(blocks) * offer.block_bytes
        scheduler.events.offered.append(Offered(request.id, offer.lease, tokens, len(blocks), nbytes, offer.deadline))
        return True

    def release(self, leases: Iterable[str], now: float) -> None:
        """Whoever was offered these has the blocks, or does without; those that have ended are left alone."""
        for lease in leases:
            if lease in self.sending:
                self._close(lease, now, "")

    def _close(self, lease: str, now: float, error: str) -> None:
        request = self.sending.pop(lease)
        offer, request.outgoing = request.outgoing, None
        assert self.connector is not None
        assert offer is not None
        assert request.reason is not None
        _try(self.connector.release, lease)
        seconds = now - (offer.deadline - self._lease_seconds)
        nbytes = len(offer.blocks) * offer.block_bytes
        self._scheduler.events.transferred.append(
            Transferred(request.id, lease, "sent", len(offer.blocks), nbytes, seconds, error)
        )
        self._scheduler.kv.free(request)
        self._scheduler.end(request, request.reason)

    # Receiving

    def refuse(self, request_id: str, offer: Offer, error: str) -> None:
        """The offer came with a request that this engine does not take, or does without."""
        self.taken.append(Taken(request_id, offer.lease, error=error))

    def receive(self, request: Request, spare: int, now: float) -> Wait | None:
        """Take blocks for what a waiting request was offered and have them filled; or say why it must wait.

        Where nothing is to be had it waits without an offer, as any request, or is gone if it was only to share that.
        `spare` blocks are left alone, if anything runs or will.
        """
        scheduler, kv, incoming = self._scheduler, self._scheduler.kv, request.incoming
        assert self.connector is not None
        assert incoming is not None
        offer, size = incoming.offer, kv.block_size
        prefix = cached_prefix(scheduler, request).whole()
        found = prefix.tokens(size)
        needed = kv.blocks_taken(request, prefix, request.num_tokens)  # its next row is to find room too
        if scheduler.running or self.receiving:
            needed += spare + len(request.children)  # each fork copies a tail
        if needed > kv.pool.num_available:
            return Wait(request.id, "blocks", needed, kv.pool.num_available)
        try:
            more = self._available(offer, found)
        except Unavailable as error:
            self._give_up(request, now, str(error))
            return None
        if more <= 0:
            self._give_up(request, now, "")
            return None
        tokens = min(offer.tokens, found + more)
        kv.admit_paged([request], [prefix], publish=False)
        if not kv.grow(request, tokens):
            raise IllegalState(f"blocks for request {request.id} were counted and are not there")
        request.incoming = msgspec.structs.replace(incoming, since=now, prefix=prefix, tokens=tokens)
        transfer = _transfer(request, size)
        try:
            self.connector.allocated(transfer)
        except Exception as error:
            kv.free(request)
            request.cached, request.incoming = 0, incoming
            self._give_up(request, now, _tell(f"taking the KV of request {request.id}", error))
            return None
        scheduler.waiting.admit(request)
        self.receiving[request] = None
        scheduler.events.receiving.append(
            Receiving(
                request.id, offer.lease, offer.engine, found, tokens - found, len(transfer.pairs), transfer.nbytes
            )
        )
        return None

    def _available(self, offer: Offer, found: int) -> int:
        """Tokens to be had of an offer beyond those `found`. Raises Unavailable."""
        size = self._scheduler.kv.block_size
        if len(offer.blocks) != blocks_for(offer.tokens, size):
            blocks = f"{len(offer.blocks)} blocks for {offer.tokens} tokens, of blocks of {size} here"
            raise Unavailable(f"{offer.engine} offers {blocks}")
        assert self.connector is not None
        try:
            return self.connector.available(offer, found) if found < offer.tokens else 0
        except Unavailable:
            raise
        except Exception as error:
            raise Unavailable(_tell(f"looking at what {offer.engine} offers", error)) from error

    def load(self) -> None:
        """The step's moves are done."""
        if self.connector is None or not self.receiving:
            return
        if not _try(self.connector.load):
            for request in self.receiving:  # whichever was not begun will not come
                _try(self.connector.cancel, request.id)

    def keeps(self, request: Request, reason: FinishReason) -> bool:
        """Whether a request that ends early must stay for now: its blocks are being written, or its siblings are to
        have what it was offered."""
        if request.incoming is None:
            return False
        if request.incoming.since is None and not request.children:
            self._do_without(request, request.incoming)
            return False
        request.reason = reason
        self.orphan(request)
        return True

    def orphan(self, request: Request) -> None:
        """It may have stayed for siblings that are gone now."""
        if request.incoming is None or request.reason is None or request.children:
            return
        if request.incoming.since is not None:
            assert self.connector is not None
            _try(self.connector.cancel, request.id)  # it ends when nothing is written any more
        else:
            self._do_without(request, request.incoming)
            self._scheduler.end(request, request.reason)

    def _do_without(self, request: Request, incoming: Incoming) -> None:
        request.incoming = None
        now = self._scheduler.now
        waited = max(0.0, now - incoming.told)  # no step was planned since then, perhaps
        self.taken.append(Taken(request.id, incoming.offer.lease, waited=waited, error=HAS_ENDED))

    def _give_up(self, request: Request, now: float, error: str) -> None:
        """Nothing can be had, or (without an `error`) nothing is missing."""
        incoming = request.incoming
        assert incoming is not None
        self._scheduler.waiting.remove(request)  # its place there may be another without the offer
        request.incoming = None
        self._scheduler.waiting.add(request)
        lease = incoming.offer.lease
        self.taken.append(Taken(request.id, lease, waited=now - incoming.told, error=error))
        self._scheduler.events.transferred.append(Transferred(request.id, lease, "received", 0, 0, 0.0, error))
        self._go_on_apart(request)

    def _go_on_apart(self, request: Request) -> None:
        """Let a waiting request and its siblings compute on their own what did not come."""
        part(self._scheduler, request)
        if request.reason is not None:
            self._scheduler.end(request, request.reason)

    def _arrived(self, ended: Ended, now: float) -> None:
        """A transfer has ended, one way or the other: nothing writes to its blocks any more."""
        scheduler, kv = self._scheduler, self._scheduler.kv
        request = scheduler.requests.get(ended.request)
        incoming = None if request is None else request.incoming
        if request is None or incoming is None or incoming.since is None or incoming.offer.lease != ended.lease:
            raise IllegalState(f"a transfer for request {ended.request} has ended, and none was begun")
        unwanted = request.reason is not None and not request.children
        error = HAS_ENDED if unwanted else ended.error
        transfer, found = _transfer(request, kv.block_size), request.num_computed
        blocks, nbytes, waited = len(transfer.pairs), transfer.nbytes, incoming.since - incoming.told
        self.taken.append(Taken(request.id, ended.lease, blocks, nbytes, waited, ended.seconds, error))
        seconds = now - incoming.since
        scheduler.events.transferred.append(
            Transferred(request.id, ended.lease, "received", blocks, nbytes, seconds, error)
        )
        del self.receiving[request]
        request.incoming = None
        if error:
            kv.free(request)
            request.cached = 0
            if not unwanted:
                scheduler.waiting.add(request)
            self._go_on_apart(request)
            return
        kv.commit(request, incoming.tokens - found, scheduler.control.prefix_cache)
        scheduler.run(request)
        tell_joined(scheduler, request, incoming.prefix, received=(incoming.tokens - found, blocks))
        children, request.children = request.children, []
        self.joined.update((request, *children))
        for child in children:
            child.parent = None
            del scheduler.unforked[child]
            child.found = request.found
            join(scheduler, request, child)
        if request.reason is not None:
            scheduler.end(request, request.reason)


def _try(call: Callable[..., None], *arguments: str) -> bool:
    """Whether the connector has done what nobody waits for; if not, that is told."""
    try:
        call(*arguments)
    except Exception as error:
        _tell(f"a connector's `{getattr(call, '__name__', call)}`", error)
        return False
    return True


def _tell(what: str, error: Exception) -> str:
    """Log what a connector raised; returns that in a line."""
    told = f"{what} failed: {one_line(error)}"
    logger.error("%s; the engine goes on", told, exc_info=error)
    return told


def _transfer(request: Request, block_size: int) -> Transfer:
    """Of one that has blocks to be filled: it has computed what it found, whole blocks."""
    incoming = request.incoming
    assert incoming is not None
    first, last = request.num_computed // block_size, blocks_for(incoming.tokens, block_size)
    pairs = zip(incoming.offer.blocks[first:last], request.table[first:last], strict=True)
    return Transfer(request.id, incoming.offer, tuple(pairs))
