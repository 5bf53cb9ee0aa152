"""What changed in the prefix cache, as the process that routes by it is told: the outcome, without tokens and order."""

from __future__ import annotations

from collections.abc import Iterable

from engine.kv_events import BlockRemoved, BlockStored, KvEvent
from engine.messages import KvNews


def kv_news(events: Iterable[KvEvent]) -> KvNews | None:
    """What the events come to, a name once at most; None if that is nothing."""
    stored: dict[int, None] = {}
    removed: dict[int, None] = {}
    cleared = False
    for event in events:
        if isinstance(event, BlockStored):
            _take(event.block_hashes, stored, removed)
        elif isinstance(event, BlockRemoved):
            _take(event.block_hashes, removed, stored)
        else:
            cleared = True
            stored.clear()
            removed.clear()
    if not (stored or removed or cleared):
        return None
    return KvNews(tuple(stored), tuple(removed), cleared)


def _take(names: Iterable[int], into: dict[int, None], undone: dict[int, None]) -> None:
    """What undoes an earlier event of these leaves nothing to tell."""
    for name in names:
        if name in undone:
            del undone[name]
        else:
            into[name] = None
