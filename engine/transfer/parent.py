"""KV from engines of any host: of its own as with shared memory, of others by whoever started this engine.

That process, the parent, can reach the other engine's, and can write into this one's pool: it is told what to fill
(`Pull`), and says when it is over (`Pulled`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.attempt import one_line
from engine.messages import Pull, Pulled
from engine.transfer.connector import Ended, Transfer
from engine.transfer.offer import Compatibility, Offer
from engine.transfer.shared_memory import CANCELLED, SharedMemoryConnector


@dataclass(slots=True)
class _Pulling:
    transfer: Transfer
    begun: float
    told: bool = False  # the parent may be writing: only it can say when that is over


class ParentConnector:
    """A `KVConnector` over `near`, for offers of its own host; `pull` tells the parent of others, and does not wait."""

    def __init__(
        self,
        near: SharedMemoryConnector,
        pull: Callable[[Pull], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._near = near
        self._pull = pull
        self._clock = clock
        self._pulling: dict[str, _Pulling] = {}  # of each request
        self._ended: list[Ended] = []

    @property
    def compatibility(self) -> Compatibility:
        return self._near.compatibility

    def available(self, offer: Offer, found: int) -> int:
        if self._is_near(offer):
            return self._near.available(offer, found)
        self._near.check(offer)  # its deadline is on another clock: its own host looks at it
        return max(0, offer.tokens - found)

    def allocated(self, transfer: Transfer) -> None:
        """Raises ValueError for a second transfer of a request whose first has not ended."""
        if transfer.request in self._pulling or self._near.moves(transfer.request):
            raise ValueError(f"request {transfer.request} is being transferred already")
        if self._is_near(transfer.offer):
            self._near.allocated(transfer)
        else:
            self._pulling[transfer.request] = _Pulling(transfer, self._clock())

    def load(self) -> None:
        self._near.load()
        for pulling in [pulling for pulling in self._pulling.values() if not pulling.told]:
            transfer = pulling.transfer
            try:
                self._pull(Pull(transfer.request, transfer.offer, self._near.place, transfer.pairs))
                pulling.told = True
            except Exception as error:  # nobody will write
                self._end(pulling, f"asking for {transfer.offer.engine}'s blocks failed: {one_line(error)}")

    def cancel(self, request: str) -> None:
        self._near.cancel(request)
        pulling = self._pulling.get(request)
        if pulling is not None and not pulling.told:
            self._end(pulling, CANCELLED)

    def pulled(self, message: Pulled) -> None:
        """The parent's answer. One that comes twice, or that nobody waits for, changes nothing."""
        pulling = self._pulling.get(message.request)
        if pulling is not None and pulling.told and pulling.transfer.offer.lease == message.lease:
            self._end(pulling, message.error)

    def poll(self) -> Sequence[Ended]:
        ended, self._ended = self._ended, []
        return [*ended, *self._near.poll()]

    def export(self, request: str, blocks: Sequence[int], tokens: int, deadline: float) -> Offer:
        return self._near.export(request, blocks, tokens, deadline)

    def release(self, lease: str) -> None:
        self._near.release(lease)

    def close(self) -> None:
        """See `SharedMemoryConnector.close`."""
        self._near.close()

    def _is_near(self, offer: Offer) -> bool:
        return offer.place.host == self._near.place.host

    def _end(self, pulling: _Pulling, error: str) -> None:
        transfer = pulling.transfer
        del self._pulling[transfer.request]
        self._ended.append(Ended(transfer.request, transfer.offer.lease, self._clock() - pulling.begun, error))
