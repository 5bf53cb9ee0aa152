"""What one engine keeps for another: from the offer until the other reads it no more. No I/O here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cluster.protocol import RECENT_TRANSFERS, TransferDone, TransferPhase, TransferState
from engine.messages import Taken
from engine.transfer.offer import Offer


@dataclass(slots=True)
class Lease:
    """An offer and what has become of it; `since` is on the clock of every `now` here."""

    request: str
    offer: Offer
    source: str
    since: float
    target: str = ""  # "": it is not placed yet
    phase: TransferPhase = "offered"
    blocks: int = 0
    nbytes: int = 0


class Leases:
    """Those in force, by their names; `recent` are transfers that ended, the newest last."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self.recent: deque[TransferDone] = deque(maxlen=RECENT_TRANSFERS)
        self.handed_over = 0  # offers that others were told to take

    def __len__(self) -> int:
        return len(self._leases)

    def offered(self, request: str, offer: Offer, source: str, now: float) -> None:
        blocks = len(offer.blocks)
        self._leases[offer.lease] = Lease(request, offer, source, now, blocks=blocks, nbytes=blocks * offer.block_bytes)

    def placed(self, lease: str, target: str) -> None:
        found = self._leases[lease]
        found.target, found.phase = target, "waiting"
        self.handed_over += 1

    def moving(self, lease: str, blocks: int, nbytes: int) -> None:
        """The target fills blocks with it. Nothing of one that is over."""
        if (found := self._leases.get(lease)) is not None:
            found.phase, found.blocks, found.nbytes = "moving", blocks, nbytes

    def overdue(self, lease: str) -> None:
        """The target waits for it no more, and may not use those blocks for others. Nothing of one that is over."""
        if (found := self._leases.get(lease)) is not None:
            found.phase = "overdue"

    def taken(self, told: Taken, now: float, unix: float) -> TransferDone | None:
        """The target reads it no more, and its `source` is to be told so. None if nobody keeps it by now."""
        found = self._leases.pop(told.lease, None)
        if found is None:
            return None
        waited = max(0.0, now - found.since - told.moved)
        done = TransferDone(
            found.request,
            told.lease,
            found.source,
            found.target,
            told.blocks,
            told.nbytes,
            waited,
            told.moved,
            unix,
            told.error,
        )
        self.recent.append(done)
        return done

    def drop(self, lease: str) -> str | None:
        """Nobody is to have it any more: returns who is to be told."""
        found = self._leases.pop(lease, None)
        return None if found is None else found.source

    def without_target(self, target: str) -> tuple[tuple[str, str], ...]:
        """The target is gone: each lease that it would have taken, and who is to be told."""
        gone = [lease for lease, found in self._leases.items() if found.target == target]
        return tuple((lease, self._leases.pop(lease).source) for lease in gone)

    def is_part(self, worker: str) -> bool:
        """Whether a worker keeps something for another, or is to read it."""
        return any(worker in (found.source, found.target) for found in self._leases.values())

    def told(self, now: float) -> Sequence[TransferState]:
        return tuple(
            TransferState(
                found.request,
                lease,
                found.source,
                found.target,
                found.phase,
                found.blocks,
                found.nbytes,
                max(0.0, now - found.since),
            )
            for lease, found in self._leases.items()
        )
