"""KV cache events folded into plain dicts, as a reader of them would, and into the index that our own router keeps; and
what the engine's own prefix cache says to both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.block_hash import ROOT
from engine.cluster.router import Router
from engine.core import EngineCore
from engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, event_hash
from engine.kv_news import kv_news


class Resident(NamedTuple):
    parent: int | None
    tokens: tuple[int, ...]


class KvFold:
    """What can be found, by hash. Whatever is stored twice or removed without being there is an error."""

    def __init__(self) -> None:
        self.blocks: dict[int, Resident] = {}
        self.salts: dict[int, str] = {}  # of blocks where a salted prompt begins
        self.stored = self.removed = self.runs = 0
        self.router = Router(block_size=1)
        self.router.add_worker("it", "replica")

    def take(self, events: Sequence[KvEvent]) -> None:
        self._route(events)
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved(hashes, medium):
                    assert medium == "GPU"
                    for block_hash in hashes:
                        del self.blocks[block_hash]
                        self.salts.pop(block_hash, None)
                    self.removed += len(hashes)
                case AllBlocksCleared():
                    self.blocks.clear()
                    self.salts.clear()

    def _route(self, events: Sequence[KvEvent]) -> None:
        news = kv_news(events)
        if news is None:
            return
        before = frozenset() if news.cleared else self.router.cached("it")
        assert before.isdisjoint(news.stored), "what is known is told"
        assert before.issuperset(news.removed), "what was never known is removed"
        self.router.take("it", news)

    def _store(self, event: BlockStored) -> None:
        size, parent = event.block_size, event.parent_block_hash
        assert len(event.token_ids) == len(event.block_hashes) * size
        assert event.block_hashes
        if event.extra_keys is not None:
            assert len(event.extra_keys) == len(event.block_hashes)
            assert parent is None, "a salt is told where a prompt begins"
            ((self.salts[event.block_hashes[0]],), *others) = event.extra_keys  # type: ignore[misc]
            assert set(others) <= {None}
        for index, block_hash in enumerate(event.block_hashes):
            assert block_hash not in self.blocks, "a hash is stored twice"
            self.blocks[block_hash] = Resident(parent, event.token_ids[index * size : (index + 1) * size])
            parent = block_hash
        self.stored += len(event.block_hashes)
        self.runs += len(event.block_hashes) > 1

    def check(self, core: EngineCore) -> None:
        """Against the cache of an engine that looks for parts of blocks, and so knows their tokens.

        A block whose parent is not that of a block is where a prompt begins.
        """
        own = {}
        for contents in core.pool.cache.contents.values():
            own[event_hash(contents.hash)] = contents
        assert self.blocks.keys() == own.keys()
        assert self.router.cached("it") == own.keys()
        for block_hash, resident in self.blocks.items():
            contents = own[block_hash]
            assert resident.tokens == tuple(contents.tokens)
            if resident.parent is not None:
                assert resident.parent == event_hash(contents.parent)
            elif contents.parent == ROOT:
                assert block_hash not in self.salts
            else:
                assert self.salts[block_hash] == contents.parent.hex()
