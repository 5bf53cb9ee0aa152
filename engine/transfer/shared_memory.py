"""KV from engines of the same host: their pools are mapped, and a thread of this engine's own copies the blocks.

The thread holds nothing that the engine's steps wait for. What it copies into is the connector's alone until `poll`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from engine.faults import Faults
from engine.log import event
from engine.transfer.connector import Ended, Transfer, Unavailable
from engine.transfer.offer import Compatibility, Offer, PoolPlace
from engine.transfer.pool_memory import MappedPools, Pool, PoolGone, check_alike, check_blocks, check_there, runs

CANCELLED = "nobody waits for it any more"
_log = logging.getLogger(__name__)
T = TypeVar("T")


class LeasePassed(Unavailable):
    """The blocks may hold anything by now."""


class TooSlow(Unavailable):
    """The blocks are computed sooner than they come."""


@dataclass(slots=True, eq=False)
class _Move:
    """A transfer from `allocated` to `poll`. The engine's thread sets `cancelled`, the copying one looks at it."""

    transfer: Transfer
    begun: float
    cancelled: bool = False


class SharedMemoryConnector:
    """A `KVConnector` over pools of one host. `wake` is called by its thread, whenever `poll` has something to tell.

    `pool` is the one at `place`, the engine's own. A transfer that takes more than `patience` seconds is given up.
    """

    def __init__(
        self,
        engine: str,
        compatibility: Compatibility,
        place: PoolPlace,
        pool: Pool,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        faults: Faults | None = None,
        patience: float = math.inf,
    ) -> None:
        self.place = place
        self._engine = engine
        self._compatibility = compatibility
        self._pool = pool
        self._block_bytes = pool[0].size * pool.itemsize
        self._wake = wake
        self._clock = clock
        self._patience = patience
        self._faults = faults or Faults(())
        self._life = secrets.token_hex(8)  # an engine that is started again has another one
        self._leases = itertools.count(1)
        self._moves: dict[str, _Move] = {}  # of each request
        self._waiting: list[_Move] = []  # for `load`
        self._loaded: queue.SimpleQueue[_Move | None] = queue.SimpleQueue()
        self._ended: deque[Ended] = deque()
        self._pools = MappedPools()
        self._thread = threading.Thread(target=self._run, name="kv-copies", daemon=True)
        self._thread.start()

    @property
    def compatibility(self) -> Compatibility:
        return self._compatibility

    def check(self, offer: Offer) -> None:
        """Raise Unavailable unless the offer's blocks could be blocks of this engine's, wherever they lie."""
        if offer.compatibility != self._compatibility.digest:
            raise Unavailable(f"{offer.engine} has another model or layout than {self._compatibility.told}")
        check_alike(offer.place, self.place)
        check_blocks(offer.place, offer.blocks)
        block_size = self.place.shape[4]
        if len(offer.blocks) != -(-offer.tokens // block_size) or offer.block_bytes != self._block_bytes:
            raise Unavailable(f"{offer.engine} offers {len(offer.blocks)} blocks for {offer.tokens} tokens")

    def available(self, offer: Offer, found: int) -> int:
        self.check(offer)
        if offer.place.host != self.place.host:
            raise Unavailable(f"{offer.engine} is on {offer.place.host}, and this engine reads those of its host alone")
        self._check_place(offer, check_there)
        self._check_lease(offer, self._clock())
        return max(0, offer.tokens - found)

    def allocated(self, transfer: Transfer) -> None:
        """Raises ValueError for a second transfer of a request whose first has not ended."""
        if self.moves(transfer.request):
            raise ValueError(f"request {transfer.request} is being transferred already")
        check_blocks(self.place, [target for _, target in transfer.pairs])
        check_blocks(transfer.offer.place, [source for source, _ in transfer.pairs])
        move = self._moves[transfer.request] = _Move(transfer, self._clock())
        self._waiting.append(move)

    def moves(self, request: str) -> bool:
        """Whether a transfer of it was allocated, and its end not told."""
        return request in self._moves

    def load(self) -> None:
        for move in self._waiting:
            self._loaded.put(move)
        self._waiting.clear()

    def cancel(self, request: str) -> None:
        move = self._moves.get(request)
        if move is None:
            return
        move.cancelled = True
        if move in self._waiting:
            self._waiting.remove(move)
            self._end(move, CANCELLED)

    def poll(self) -> Sequence[Ended]:
        found = []
        while self._ended:
            ended = self._ended.popleft()
            del self._moves[ended.request]
            found.append(ended)
        return found

    def export(self, request: str, blocks: Sequence[int], tokens: int, deadline: float) -> Offer:
        return Offer(
            lease=f"{self._engine or 'engine'}-{self._life}-{next(self._leases)}",
            engine=self._engine or "engine",
            compatibility=self._compatibility.digest,
            place=self.place,
            blocks=tuple(blocks),
            tokens=tokens,
            block_bytes=self._block_bytes,
            deadline=deadline,
        )

    def release(self, lease: str) -> None:
        """Readers need no leave from this process: what an offer allows ends with its deadline or its reader."""

    def close(self) -> None:
        """End the thread, and let go of others' pools. For tests: else it ends with the process."""
        self._loaded.put(None)
        self._thread.join()

    def _check_place(self, offer: Offer, look: Callable[[PoolPlace], T]) -> T:
        """What a look at the offering engine's pool gives. Raises Unavailable, with the engine's name."""
        try:
            return look(offer.place)
        except PoolGone:
            raise PoolGone(f"{offer.engine} has ended, and its blocks with it") from None
        except Unavailable as unavailable:
            raise Unavailable(f"{offer.engine}'s blocks cannot be read: {unavailable}") from None

    def _check_lease(self, offer: Offer, now: float) -> None:
        late = now - offer.deadline
        if late >= 0:
            raise LeasePassed(f"the lease of {offer.engine}'s blocks has ended {late:.1f} s ago")

    def _run(self) -> None:
        while (move := self._loaded.get()) is not None:
            error, failure = "", None
            try:
                self._copy(move)
            except Unavailable as unavailable:
                error = str(unavailable)
            except Exception as unexpected:  # it costs this transfer alone
                failure = unexpected
                error = f"copying {move.transfer.offer.engine}'s blocks failed: {type(failure).__name__}: {failure}"
            self._end(move, error)
            self._wake()
            if failure is not None:
                with contextlib.suppress(Exception):  # others still wait for this thread
                    event(_log, logging.ERROR, "transfer_failed", error, error=failure)
        self._pools.close()

    def _end(self, move: _Move, error: str) -> None:
        transfer = move.transfer
        self._ended.append(Ended(transfer.request, transfer.offer.lease, self._clock() - move.begun, error))

    def _copy(self, move: _Move) -> None:
        """Copy a transfer's blocks. Raises Unavailable when they are worth nothing.

        It is the clock after the last one that says so: until the deadline the offering engine leaves them alone, also
        by dying, which changes nothing in memory that is mapped here.
        """
        offer = move.transfer.offer
        slower = self._faults.before_transfer()
        source = self._check_place(offer, self._pools.pool)
        for begin, target, count in runs(sorted(move.transfer.pairs)):  # pools often give blocks out backwards
            if move.cancelled:
                raise Unavailable(CANCELLED)
            self._check_time(move)
            self._pool[target : target + count] = source[begin : begin + count]
            if slower:
                time.sleep(slower)
        self._check_lease(offer, self._clock())

    def _check_time(self, move: _Move) -> None:
        offer, now = move.transfer.offer, self._clock()
        self._check_lease(offer, now)
        if now - move.begun > self._patience:
            raise TooSlow(f"{offer.engine}'s blocks were not here within {self._patience:g} s")
