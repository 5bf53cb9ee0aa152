"""The bounded past: every record, compressed, with keyframes between, so that any moment of it can be had again."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from engine.protocol import Control, Record
from tui import controls
from tui.chunk import Chunk
from tui.fold import EngineFold
from tui.keyframe import Keyframe
from tui.lanes import Lanes
from tui.recording import RecordHead

BUDGET = 64 << 20  # bytes kept in all
CHUNK = 128 << 10  # bytes of records that are compressed together
SPACING = range(16_000, 100_000)  # rows folded again at most to reach a record: 40 to 250 ms
RECORD_COST = 15  # a record costs about so many rows' time besides its own
BLOCKS_PER_ROW = 10  # a keyframe of more blocks, in the pool's and the requests' tables, is due after more rows
TOUCHED = 8  # a new reel is due when one of so many blocks differs from its first keyframe
SMALL_POOL = 4_096  # blocks; every keyframe of a smaller one is whole
REELS = 6  # the oldest sixth of the budget goes at once
WORTH = 3  # but a reel is at least so many times as large as its first keyframe

KINDS = ("gap", "switch", "preemption", "copy on write", "cache cleared", "fault", "request failed")
GAP, SWITCH, PREEMPTION, COPY, CLEARED, FAULT, FAILED = (1 << kind for kind in range(len(KINDS)))

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Record).decode


class NotKept(LookupError):
    """The tape does not have that moment: it is too old, too new, or its record was lost."""


def events(record: Record | RecordHead, before: Control) -> int:
    """What of note happens in a record, as bits; `before` is the control until then."""
    return (
        (SWITCH if controls.changes(before, record.control) else 0)
        | (PREEMPTION if record.preempted else 0)
        | (COPY if record.copies else 0)
        | (CLEARED if record.cleared else 0)
        | (FAULT if record.fault else 0)
        | (FAILED if any(end.reason == "error" for end in (*record.held, *record.left)) else 0)
    )


def words(bits: int) -> str:
    """Events for a person."""
    return ", ".join(kind for at, kind in enumerate(KINDS) if bits >> at & 1)


@dataclass(slots=True)
class _Reel:
    """A whole keyframe, what was recorded after it without a gap, and keyframes that go on from the first."""

    keyframes: list[Keyframe]
    chunks: list[Chunk] = field(default_factory=list)
    last: int = 0
    size: int = 0  # of the chunks that are closed and the first `settled` keyframes
    settled: int = 0

    @property
    def first(self) -> int:
        return self.keyframes[0].seq

    def bytes(self) -> int:
        """What it takes; that of chunks and keyframes which are still open or compressed is added up each time."""
        while self.settled < len(self.keyframes) and not self.keyframes[self.settled].packs:
            self.size += self.keyframes[self.settled].size
            self.settled += 1
        opened = self.chunks[-1].size if self.chunks and not self.chunks[-1].packed else 0
        return self.size + opened + sum(frame.size for frame in self.keyframes[self.settled :])


class Tape:
    """Records and keyframes of one engine, oldest dropped first. `budget` is in bytes."""

    def __init__(self, budget: int | None = None) -> None:
        self.budget = BUDGET if budget is None else budget
        self._reels: list[_Reel] = []
        self._since = 0  # rows since the last keyframe, or so
        self._spacing = SPACING.start
        self._gaps: list[tuple[int, int]] = []
        self._event_seqs = array("q")
        self._event_bits = array("B")
        self._cursor: tuple[EngineFold, Lanes] | None = None
        self._chunk: tuple[Chunk, list[bytes]] | None = None  # the last one that was read

    @property
    def first(self) -> int:
        """The oldest record after which the state is known; 0 of an empty tape."""
        return self._reels[0].first if self._reels else 0

    @property
    def last(self) -> int:
        """The newest record."""
        return self._reels[-1].last if self._reels else 0

    @property
    def bytes(self) -> int:
        """What is kept, in bytes."""
        return sum(reel.bytes() for reel in self._reels) + 9 * len(self._event_seqs)

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Records that were lost since the first one kept, as (first, last)."""
        return tuple(self._gaps)

    def begin(self, fold: EngineFold, lanes: Lanes) -> None:
        """Go on from a state that was read: the records between the last and it, if any, are missing."""
        if self._reels:
            if fold.seq > self.last:
                self._gaps.append((self.last + 1, fold.seq))
            self._note(fold.seq, GAP)
        self._open_reel(fold, lanes)

    def keep(self, record: Record, fold: EngineFold, lanes: Lanes, before: Control) -> None:
        """Take one record; `fold` and `lanes` are as they are after it, `before` is the control until then."""
        reel = self._reels[-1]
        if not reel.chunks or reel.chunks[-1].packed:
            reel.chunks.append(Chunk(record.seq))
        chunk = reel.chunks[-1]
        chunk.add(_pack(record))
        reel.last = record.seq
        if chunk.size >= CHUNK:
            chunk.close()
            reel.size += chunk.size
            self._drop()
        bits = events(record, before)
        if bits:
            self._note(record.seq, bits)
        self._since += len(record.rows) + RECORD_COST
        if self._since >= self._spacing:
            self._add_keyframe(fold, lanes)

    def record(self, seq: int) -> Record | None:
        """One record; None where it is not kept."""
        for reel in self._reels[::-1]:
            if reel.first < seq <= reel.last:
                return next(self._records(reel, seq))
        return None

    def records(self, first: int, last: int) -> Iterator[Record]:
        """Those from `first` to `last`, beginning later where some before are not kept."""
        reels = [reel for reel in self._reels if reel.first < last and first <= reel.last]
        for at in range(len(reels) - 1, 0, -1):
            if reels[at - 1].last != reels[at].first:  # some are missing between them
                reels = reels[at:]
                break
        for reel in reels:
            begin, end = max(first, reel.first + 1), min(last, reel.last)
            if begin <= end:
                yield from islice(self._records(reel, begin), end - begin + 1)

    def at(self, seq: int) -> EngineFold:
        """The state after record `seq`. It changes with the next question. Raises NotKept."""
        return self.moment(seq)[0]

    def moment(self, seq: int) -> tuple[EngineFold, Lanes]:
        """The state after record `seq`, and who is in which lane. They change with the next question."""
        reel = next((reel for reel in reversed(self._reels) if reel.first <= seq <= reel.last), None)
        if reel is None:
            raise NotKept(f"record {seq} is not kept")
        keyframe = reel.keyframes[bisect_right(reel.keyframes, seq, key=lambda frame: frame.seq) - 1]
        cursor = self._cursor
        if cursor is None or not keyframe.seq <= cursor[0].seq <= seq:
            cursor = keyframe.restore(keyframe if keyframe.whole else reel.keyframes[0])
        self._cursor = None  # what breaks off in the middle is not gone on from
        fold, lanes = cursor
        if fold.seq < seq:
            records = self._records(reel, fold.seq + 1)
            while fold.seq < seq:
                record = next(records)
                lanes.open(record)
                fold.apply(record)
                lanes.close(record)
        self._cursor = cursor
        return cursor

    def nearest(self, seq: int) -> int:
        """The record next to `seq` after which the state is known."""
        ends = [(reel.first, reel.last) for reel in self._reels]
        inside = [min(max(seq, first), last) for first, last in ends]
        return min(inside, key=lambda at: abs(at - seq), default=0)

    def event_after(self, seq: int) -> tuple[int, str] | None:
        """The first record of note after `seq`, and what happens in it."""
        at = bisect_right(self._event_seqs, seq)
        return self._event(at) if at < len(self._event_seqs) else None

    def event_before(self, seq: int) -> tuple[int, str] | None:
        """The last record of note before `seq`, and what happens in it."""
        at = bisect_left(self._event_seqs, seq)
        return self._event(at - 1) if at else None

    def _event(self, at: int) -> tuple[int, str]:
        return self._event_seqs[at], words(self._event_bits[at])

    def _note(self, seq: int, bits: int) -> None:
        if self._event_seqs and self._event_seqs[-1] == seq:
            self._event_bits[-1] |= bits
        else:
            self._event_seqs.append(seq)
            self._event_bits.append(bits)

    def _records(self, reel: _Reel, seq: int) -> Iterator[Record]:
        """Those of a reel from `seq` on."""
        at = bisect_right(reel.chunks, seq, key=lambda chunk: chunk.first) - 1
        for chunk in reel.chunks[at:]:
            if not chunk.packed:
                data = chunk.open
            elif self._chunk is not None and self._chunk[0] is chunk:
                data = self._chunk[1]
            else:
                data = chunk.data()
                self._chunk = (chunk, data)
            for packed in data[max(0, seq - chunk.first) :]:
                yield _unpack(packed)

    def _open_reel(self, fold: EngineFold, lanes: Lanes) -> None:
        if self._reels:
            old = self._reels[-1]
            if old.chunks and not old.chunks[-1].packed:
                old.chunks[-1].close()
                old.size += old.chunks[-1].size
        keyframe = Keyframe.of(fold, lanes, whole=True)
        self._reels.append(_Reel([keyframe], last=fold.seq))
        self._space(keyframe)
        self._cursor = None  # a state that was read again is not what the records before it led to
        self._drop()

    def _add_keyframe(self, fold: EngineFold, lanes: Lanes) -> None:
        """A whole one where a reel is long enough to be dropped by itself, or where much has changed."""
        reel, blocks = self._reels[-1], fold.blocks
        small = len(blocks) <= SMALL_POOL
        much = not small and int(blocks.touched.sum()) * TOUCHED > len(blocks)
        if much or reel.bytes() > max(self.budget // REELS, WORTH * reel.keyframes[0].size):
            self._open_reel(fold, lanes)
            return
        keyframe = Keyframe.of(fold, lanes, whole=small)
        reel.keyframes.append(keyframe)
        self._drop()
        self._space(keyframe)

    def _space(self, keyframe: Keyframe) -> None:
        """The next one comes after as many rows as this one's size is worth."""
        self._since = 0
        self._spacing = min(SPACING.stop, max(SPACING.start, keyframe.blocks // BLOCKS_PER_ROW))

    def _drop(self) -> None:
        """The oldest, while there is too much; the newest reel stays."""
        dropped = False
        while len(self._reels) > 1 and self.bytes > self.budget:
            del self._reels[0]
            dropped = True
        if dropped:
            first = self.first
            self._gaps = [gap for gap in self._gaps if gap[1] >= first]
            cut = bisect_left(self._event_seqs, first)
            del self._event_seqs[:cut], self._event_bits[:cut]
            self._cursor = self._chunk = None
