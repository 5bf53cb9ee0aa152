"""A connector between simulated engines: nothing is copied, and it takes as long as the links say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.simulator.links import Links
from engine.simulator.runner import SimulatedClock
from engine.transfer.connector import Ended, Transfer, Unavailable
from engine.transfer.offer import Compatibility, Offer, PoolPlace

_PLACE = PoolPlace("simulated", "", "", 0, (), (), 0)
_COMPATIBILITY = Compatibility("simulated", "simulated")


class SimulatedConnector:
    """A `KVConnector`. `wake` is called when a transfer has ended, with the time."""

    def __init__(
        self, engine: str, clock: SimulatedClock, block_bytes: int, links: Links, wake: Callable[[float], None]
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._block_bytes = block_bytes
        self._links = links
        self._wake = wake
        self._leases = 0
        self._waiting: list[Transfer] = []  # for `load`
        self._ended: list[Ended] = []

    @property
    def compatibility(self) -> Compatibility:
        return _COMPATIBILITY

    def available(self, offer: Offer, found: int) -> int:
        self._check_lease(offer, self._clock.now)
        return max(0, offer.tokens - found)

    def allocated(self, transfer: Transfer) -> None:
        self._waiting.append(transfer)

    def load(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transfer in waiting:
            self._send(transfer, self._clock.now)

    def cancel(self, request: str) -> None:
        """What is under way comes all the same: nobody ends a request of a simulation early."""

    def poll(self) -> Sequence[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def export(self, request: str, blocks: Sequence[int], tokens: int, deadline: float) -> Offer:
        self._leases += 1
        lease = f"{self._engine}-{self._leases}"
        return Offer(
            lease, self._engine, _COMPATIBILITY.digest, _PLACE, tuple(blocks), tokens, self._block_bytes, deadline
        )

    def release(self, lease: str) -> None:
        """Nobody reads the blocks: there is nothing in them."""

    def _send(self, transfer: Transfer, begun: float) -> None:
        offer = transfer.offer

        def done(time: float) -> None:
            error = ""
            try:
                self._check_lease(offer, time)
            except Unavailable as unavailable:
                error = str(unavailable)
            self._ended.append(Ended(transfer.request, offer.lease, time - begun, error))
            self._wake(time)

        self._links.send(offer.engine, self._engine, transfer.nbytes, begun, done)

    def _check_lease(self, offer: Offer, now: float) -> None:
        if now >= offer.deadline:
            raise Unavailable(f"the lease of {offer.engine}'s blocks ended {now - offer.deadline:.1f} s ago")
