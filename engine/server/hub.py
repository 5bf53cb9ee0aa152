"""The step stream's memory: a bounded ring of encoded records that any number of readers walk.

A reader is a cursor and nothing else. One that stops costs no memory and slows nobody; when it comes back too
late it is told which records it lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple

from engine.protocol import Gap

MAX_RECORDS = 16_384
MAX_BYTES = 8 * 1024 * 1024  # some thousands of records: half a minute of a busy engine
READ_BYTES = 64 * 1024  # of records handed out at once: what a reader may hold


class Batch(NamedTuple):
    """What a reader gets: perhaps a gap, then (seq, JSON) pairs, and the sequence number it wants next."""

    gap: Gap | None
    records: list[tuple[int, bytes]]
    next_seq: int


class StepHub:
    """The newest records, by sequence number. For one event loop."""

    def __init__(self, max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES) -> None:
        self._records: OrderedDict[int, bytes] = OrderedDict()
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._news = asyncio.Event()
        self.bytes = 0
        self.newest = 0  # the last sequence number that the engine is known to have made
        self.closed = False

    def __len__(self) -> int:
        return len(self._records)

    def publish(self, seq: int, record: bytes) -> None:
        if seq <= self.newest:
            raise ValueError(f"record {seq} came after {self.newest}")
        self._records[seq] = record
        self.bytes += len(record)
        while len(self._records) > self._max_records or self.bytes > self._max_bytes:
            self.bytes -= len(self._records.popitem(last=False)[1])
        self._advance(seq)

    def seen(self, seq: int) -> None:
        """The engine told of `seq` in another way: if its record never came, it is lost."""
        if seq > self.newest:
            self._advance(seq)

    def close(self) -> None:
        """No more records will come: readers end."""
        self.closed = True
        self._wake()

    def read(self, seq: int) -> Batch:
        """Records from `seq` on that are here now, up to about `READ_BYTES`."""
        records: list[tuple[int, bytes]] = []
        size = 0
        first = self._first_from(seq)
        at = first
        while at <= self.newest and (record := self._records.get(at)) is not None:
            if records and size + len(record) > READ_BYTES:
                break
            records.append((at, record))
            size += len(record)
            at += 1
        return Batch(Gap(seq, first - 1) if first > seq else None, records, at)

    async def wait(self, seq: int) -> None:
        """Until record `seq` is made, or the stream is closed."""
        while self.newest < seq and not self.closed:
            await self._news.wait()

    def _first_from(self, seq: int) -> int:
        """The first record at or after `seq` that is here; `newest + 1` if there is none."""
        if seq > self.newest or seq in self._records:
            return seq
        oldest = next(iter(self._records), self.newest + 1)
        if seq < oldest:
            return oldest
        while seq <= self.newest and seq not in self._records:  # a hole: the engine dropped them
            seq += 1
        return seq

    def _advance(self, seq: int) -> None:
        self.newest = seq
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
