"""The one interface by which an engine gives KV blocks away and gets others' (after vLLM's KV connector).

All of it is called by the engine's own thread, between two steps or, `load`, within one. None of it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from engine.transfer.offer import Compatibility, Offer


class Transfer(msgspec.Struct, frozen=True):
    """Blocks on their way into this engine: each pair is (block of the offering pool, block of this one)."""

    request: str
    offer: Offer
    pairs: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        return len(self.pairs) * self.offer.block_bytes


class Ended(msgspec.Struct, frozen=True):
    """A transfer that touches no block any more. With an `error` what was copied is worth nothing."""

    request: str
    lease: str
    seconds: float  # that it took, waiting for others included
    error: str = ""


class KVConnector(Protocol):
    """How blocks come and go. An engine without one offers nothing and takes nothing."""

    @property
    def compatibility(self) -> Compatibility:
        """What another engine must have in common with this one, so that either can go on with the other's KV."""
        ...

    def available(self, offer: Offer, found: int) -> int:
        """How many tokens can be had of an offer beyond the `found` ones that are here, in whole blocks of these.

        0 where nothing is to be gained. Raises Unavailable where the offer cannot be read at all.
        """
        ...

    def allocated(self, transfer: Transfer) -> None:
        """Its target blocks are taken and are the connector's alone, until `poll` tells that it has ended."""
        ...

    def load(self) -> None:
        """Begin what was allocated: the step's own moves are done, whatever else used the target blocks before."""
        ...

    def cancel(self, request: str) -> None:
        """Nobody waits for it any more; `poll` still tells when the blocks are not touched any more."""
        ...

    def poll(self) -> Sequence[Ended]:
        """Transfers that have ended since the last call, done, failed or cancelled: each is told once."""
        ...

    def export(self, request: str, blocks: Sequence[int], tokens: int, deadline: float) -> Offer:
        """Let others read these blocks, which do not change until `release`."""
        ...

    def release(self, lease: str) -> None:
        """The offer holds no more."""
        ...


class Unavailable(ValueError):
    """An offer that this engine cannot take, and why, for a person."""
