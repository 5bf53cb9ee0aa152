"""Hear a publisher of KV events over ZMQ, in order, as `Heard`, `Missed` and `Restarted`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Literal

from servers.kv_events import Message

DEFAULT_PORT = 5557  # and one more for each data-parallel rank

Link = Literal["connecting", "connected"]


def subscribe(
    endpoint: str, replay: str | None = None, topic: str = "", told: Callable[[Link], None] | None = None
) -> AsyncIterator[Message]:
    """Messages for ever, through reconnects; closing the iterator closes the sockets.

    `replay` is the endpoint that has the last messages again, where there is one. `told` is called as the connection
    comes and goes. Raises ValueError for an endpoint that cannot be connected to.
    """
    raise NotImplementedError


def of_rank(endpoint: str, rank: int) -> str:
    """The endpoint of a data-parallel rank, where `endpoint` is of rank 0."""
    raise NotImplementedError
