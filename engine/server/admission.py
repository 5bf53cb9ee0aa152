"""The queue's limits: how many requests may wait for their first token, of all clients and of each."""

from __future__ import annotations

from engine.server.settings import Limits


class Admission:
    """Counts requests that have no token yet."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
