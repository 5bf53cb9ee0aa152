"""How many rows of the batch a client may hold under the policy `fair`, so that others find room when they come.

Whoever asks for one answer after the other has nothing waiting for a moment between two; without a share of its own,
a client with a long queue would fill the rows that become free then, and keep them for as long as its answers are.
"""

from __future__ import annotations

LATELY = 1.0  # seconds since its last request ended, for which a client keeps its share


class RowShares:
    """Equal parts of the batch for all clients that have requests, or lately had."""

    def __init__(self) -> None:
        self._live: dict[str, int] = {}  # requests of each
        self._gone: dict[str, float] = {}  # when each of the others had its last one, oldest first

    def came(self, client: str) -> None:
        self._live[client] = self._live.get(client, 0) + 1
        self._gone.pop(client, None)

    def went(self, client: str, now: float) -> None:
        """One of its requests has ended. Raises KeyError for a client that has none."""
        self._live[client] -= 1
        if not self._live[client]:
            del self._live[client]
            self._gone[client] = now
            self._forget(now)

    def most(self, rows: int, now: float) -> int:
        """Of `rows`; at least one."""
        self._forget(now)
        clients = len(self._live) + len(self._gone)
        return -(-rows // clients) if clients else rows

    def _forget(self, now: float) -> None:
        while self._gone:
            client = next(iter(self._gone))
            if self._gone[client] >= now - LATELY:
                return
            del self._gone[client]
