"""Whose turn it is: start-time fair queueing of clients (Goyal, Vin and Cheng, SIGCOMM 1996), with requests as packets.

A client's tag is what its requests were charged so far, in tokens, and the least tag is next. Who begins to wait gets
at least the virtual time, which is the tag by which the last one was admitted: nobody saves up a share by staying away,
and nobody's earlier requests count against it once all others have had as much.

As Sheng et al. (OSDI 2024) do for LLMs, a client is charged when a request is admitted, not when it arrives, so that
those that end in the queue cost nothing; and in the end for what it used, not for what it asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low

REMEMBERED = 1024  # clients that wait no more, besides as many as wait


@dataclass(slots=True)
class _Client:
    joined: int  # the tag with which it began; what it was charged before has been forgotten
    tag: int
    waiting: int = 0  # requests


class FairShares:
    """The tags of those who wait, and of some who lately did."""

    def __init__(self) -> None:
        self.virtual_time = 0
        self._clients: dict[str, _Client] = {}
        self._num_waiting = 0  # clients

    def __len__(self) -> int:
        """Clients that it knows."""
        return len(self._clients)

    def tag(self, client: str) -> int:
        """Of one that waits."""
        return self._clients[client].tag

    def arrive(self, client: str) -> None:
        """One more of its requests waits."""
        known = self._clients.get(client)
        if known is None or (not known.waiting and known.tag <= self.virtual_time):
            known = self._clients[client] = _Client(self.virtual_time, self.virtual_time)
        if not known.waiting:
            self._num_waiting += 1
        known.waiting += 1

    def leave(self, client: str) -> None:
        """One of them waits no more."""
        known = self._clients[client]
        known.waiting -= 1
        if not known.waiting:
            self._num_waiting -= 1
            self._forget()

    def charge(self, client: str, tokens: int) -> int:
        """A request of a client that waits is admitted; returns its turn, which is not less than any before."""
        known = self._clients[client]
        self.virtual_time = max(self.virtual_time, known.tag)
        known.tag += tokens
        return self.virtual_time

    def give_back(self, client: str, tokens: int, turn: int) -> None:
        """A request that was charged in `turn` did not use so many."""
        known = self._clients.get(client)
        if known is not None and turn >= known.joined:
            known.tag = max(known.joined, known.tag - tokens)

    def _forget(self) -> None:
        """Where nobody waits, all have had what they wanted. Else those that got least: it is the least advantage."""
        if not self._num_waiting:
            self._clients.clear()
            self.virtual_time += 1  # what was charged before is from before
        elif len(self._clients) > 2 * self._num_waiting + REMEMBERED:
            gone = {name: known.tag for name, known in self._clients.items() if not known.waiting}
            self.virtual_time = max(self.virtual_time, median_low(gone.values()))
            for name, tag in gone.items():
                if tag <= self.virtual_time:
                    del self._clients[name]
