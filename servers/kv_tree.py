"""The tree of prefix blocks that a server has in its cache now, folded from its KV events. Pure.

A block may be in several media at once (GPU, CPU, disk): it is one block of the tree for as long as one of them has it.
Engines may compute equal blocks twice and tell of both: a block is gone when it was removed as often as it was stored.
vLLM tells so. Where it also announces blocks that a request found (`kv_cache_report_mode` full), nothing tells these
from copies, and such blocks stay here for too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from servers.kv_events import (
    AllBlocksCleared,
    BadEvents,
    Batch,
    BlockHash,
    BlockStored,
    Heard,
    Message,
    Missed,
    Restarted,
)
from servers.kv_nodes import Space, counted, moment
from servers.kv_runs import Line, Run, lines_of

__all__ = ["Churn", "KvTree", "Run"]

MAX_BLOCKS = 1_000_000  # that are kept: a publisher whose removals are lost would fill the memory
MAX_SPACES = 256  # ranks times groups
MAX_OPENINGS = 32_768  # blocks whose first token ids are kept: at most 8 MiB


@dataclass(frozen=True, slots=True)
class Churn:
    """Counts since the watching began. A block that goes from one medium to another is stored and removed.

    `again`: blocks that were gone from all media and came back, of the last that went (`kv_nodes.REMEMBERED`): what
    was computed once more because it had been evicted. Blocks that went as everything was cleared are in neither.
    """

    stored: int = 0
    removed: int = 0
    again: int = 0
    cleared: int = 0  # times that everything was
    restarted: int = 0  # times that the publisher was
    missed: int = 0  # messages
    unknown_parents: int = 0
    unknown_removals: int = 0
    unknown_events: int = 0  # of types that are not known here
    left_out: int = 0  # blocks, beyond MAX_BLOCKS


class KvTree:
    """Fold messages in the order in which they came; `runs` and `resident` are of what is there now.

    Each block that is told of costs constant time; the first look at `runs` after a change costs one walk of all.
    """

    def __init__(self) -> None:
        self._spaces: dict[tuple[int, int], Space] = {}  # by rank and group: a hash names one block in each
        self._heard = self._late = self._full = False
        self._doubtful_since: float | None = None
        self._time = 0.0
        self._cleared = self._restarted = self._missed = self._unknown_events = self._left_out = 0
        self._changes = 0
        self._walked: tuple[int, list[Line]] = (-1, [])

    def take(self, message: Message) -> None:
        self._changes += 1
        if isinstance(message, Restarted):
            self._restarted += 1
            self._forget(None)
            self._heard = False
        elif isinstance(message, Missed):
            self._missed += message.last - message.first + 1
            if not self._heard:
                self._heard = self._late = True
            if self._doubtful_since is None:
                self._doubtful_since = self._time
        else:
            if not self._heard:
                self._heard, self._late = True, message.sequence > 0
            self._fold(message.batch)

    @property
    def complete(self) -> bool:
        """Whether everything was heard from the publisher's beginning on, or since it cleared everything.

        Else there may be more than is seen, and where `doubtful_since` is set, less.
        """
        return self._heard and not self._late and self._doubtful_since is None and not self._full

    @property
    def late(self) -> bool:
        """Whether the publisher had told something before it was listened to: blocks of then are not seen."""
        return self._late

    @property
    def doubtful_since(self) -> float | None:
        """The publisher's time of the last message before one was missed: what was stored by then may be gone."""
        return self._doubtful_since

    @property
    def resident(self) -> int:
        """Different blocks in any medium."""
        return sum(space.resident for space in self._spaces.values())

    @property
    def tokens(self) -> int:
        """Of the resident blocks; those whose size is not told count as none."""
        return sum(space.tokens for space in self._spaces.values())

    @property
    def media(self) -> dict[str | None, int]:
        """Blocks by medium; one that two have is in both. None: where it is not told."""
        out: dict[str | None, int] = {}
        for space in self._spaces.values():
            for medium, blocks in space.by_medium.items():
                out[medium] = out.get(medium, 0) + blocks
        return out

    @property
    def churn(self) -> Churn:
        spaces = self._spaces.values()
        return Churn(
            stored=sum(space.stored for space in spaces),
            removed=sum(space.evicted for space in spaces),
            again=sum(space.again for space in spaces),
            cleared=self._cleared,
            restarted=self._restarted,
            missed=self._missed,
            unknown_parents=sum(space.unknown_parents for space in spaces),
            unknown_removals=sum(space.unknown_removals for space in spaces),
            unknown_events=self._unknown_events,
            left_out=self._left_out,
        )

    @property
    def changes(self) -> int:
        """Raised by every message: as long as it is the same, so are the runs."""
        return self._changes

    def holds(self, block_hash: BlockHash, medium: str | None = None, group: int = 0, rank: int = 0) -> bool:
        """Whether a block is resident, in `medium` or where that is None in any."""
        space = self._spaces.get((rank, group))
        node = space.nodes.get(block_hash) if space else None
        return node is not None and (bool(node.media) if medium is None else medium in node.media)

    def hashes(self, group: int = 0, rank: int = 0) -> Iterator[BlockHash]:
        """Of the resident blocks of one space, in no order."""
        space = self._spaces.get((rank, group))
        return (node.hash for node in space.nodes.values() if node.media) if space else iter(())

    def runs(self) -> Iterator[Run]:
        """Depth first, the largest subtree first. Only those that are asked for are made."""
        return (line.run() for line in self._lines())

    def copy(self) -> KvTree:
        """A tree of its own, as of now."""
        other = KvTree()
        vars(other).update(vars(self))
        other._spaces = {key: space.copy() for key, space in self._spaces.items()}
        other._walked = (-1, [])
        return other

    def to_state(self) -> dict[str, object]:
        """What is needed to go on folding, fit for JSON. No token ids are in it."""
        return {
            **{name: getattr(self, f"_{name}") for name in _STATE},
            "spaces": [[*key, space.to_state()] for key, space in self._spaces.items()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> KvTree:
        """Raises BadEvents for what `to_state` does not make."""
        tree = cls()
        try:
            for name in _STATE:
                came = state[name]
                if name == "doubtful_since":
                    came = None if came is None else moment(came)
                else:
                    came = moment(came) if name == "time" else counted(came)
                setattr(tree, f"_{name}", came)
            for rank, group, space in state["spaces"]:
                tree._spaces[rank, group] = Space.from_state(space)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise BadEvents(f"not the state of a tree: {error!r}") from None
        return tree

    def keep_openings(self, message: Message, most: int = MAX_OPENINGS) -> None:
        """The first token ids of blocks that a message stored, once it was taken: for as long as they are resident.

        They are part of no state. `most`: blocks of which any are kept.
        """
        if not isinstance(message, Heard):
            return
        for event in message.batch.events:
            if isinstance(event, BlockStored) and event.token_ids:
                space = self._spaces.get((message.batch.rank or 0, event.group or 0))
                if space is not None:
                    space.keep_openings(event, most // len(self._spaces))

    def opening(self, run: Run, most: int) -> tuple[int, ...]:
        """The first token ids of a run, `most` of them at most, as far as they are kept."""
        space = self._spaces.get((run.rank, run.group))
        return space.opening(run.first, run.last, most) if space is not None else ()

    def _lines(self) -> list[Line]:
        if self._walked[0] != self._changes:
            self._walked = (self._changes, lines_of(self._spaces))
        return self._walked[1]

    def _fold(self, batch: Batch) -> None:
        self._time = batch.time
        self._unknown_events += batch.unknown
        rank = batch.rank or 0
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self._cleared += 1
                self._forget(rank)
                continue
            space = self._space(rank, event.group or 0)
            if space is None:
                self._leave_out(len(event.hashes))
            elif isinstance(event, BlockStored):
                self._leave_out(space.store(event, batch.time, max(MAX_BLOCKS - self.resident, 0)))
            else:
                space.remove(event)

    def _space(self, rank: int, group: int) -> Space | None:
        space = self._spaces.get((rank, group))
        if space is None and len(self._spaces) < MAX_SPACES:
            space = self._spaces[rank, group] = Space()
        return space

    def _leave_out(self, blocks: int) -> None:
        self._left_out += blocks
        self._full = self._full or blocks > 0

    def _forget(self, rank: int | None) -> None:
        """Clear the spaces of a rank, None: of all. When nothing is left, nothing is in doubt."""
        for (of, _), space in self._spaces.items():
            if rank is None or of == rank:
                space.clear()
        if not self.resident:
            self._late = self._full = False
            self._doubtful_since = None


_STATE = (
    *("heard", "late", "full", "doubtful_since", "time", "changes"),
    *("cleared", "restarted", "missed", "unknown_events", "left_out"),
)
