"""The last steps, kept encoded in memory: what a crash file is written of, so that nothing is asked of broken books.

Two segments, each a snapshot and the records after it. The newer one grows; when it is full a new one begins and the
older is forgotten, so that there is always at least one full segment behind the present.
"""

from __future__ import annotations

from engine.protocol import Snapshot, encode

MAX_BYTES = 4 * 1024 * 1024  # of a segment's records
MAX_RECORDS = 8192
SNAPSHOTS = 4  # a segment's records may have the bytes of so many snapshots, or those of a large pool cost too much


class _Segment:
    def __init__(self, snapshot: bytes) -> None:
        self.snapshot = snapshot
        self.records: list[bytes] = []
        self.size = 0  # of the records, in bytes


class FlightRecorder:
    """Holds at most two segments. One has a snapshot of S bytes, and is full with `max_records` records, or when they
    have `max_bytes`, or 4 S if that is more; the last one may go beyond. `lines` may be called in any thread."""

    def __init__(self, snapshot: Snapshot, max_bytes: int = MAX_BYTES, max_records: int = MAX_RECORDS) -> None:
        self._max_bytes = max_bytes
        self._max_records = max_records
        # The newer one last. Replaced, never changed: another thread may look at any moment.
        self._segments: tuple[_Segment, ...] = (_Segment(encode(snapshot)),)

    def take(self, record: bytes) -> None:
        """Keep the record that follows."""
        segment = self._segments[-1]
        segment.records.append(record)
        segment.size += len(record)

    @property
    def is_full(self) -> bool:
        """A new snapshot is wanted, of after the last record."""
        segment = self._segments[-1]
        most = max(self._max_bytes, SNAPSHOTS * len(segment.snapshot))
        return segment.size >= most or len(segment.records) >= self._max_records

    def begin(self, snapshot: Snapshot) -> None:
        """Go on from `snapshot`, and forget what lies before the last one."""
        self._segments = (self._segments[-1], _Segment(encode(snapshot)))

    def lines(self) -> list[bytes]:
        """What is kept, as a recording's lines: the older snapshot, and all records after it."""
        segments = self._segments
        return [segments[0].snapshot, *(record for segment in segments for record in tuple(segment.records))]
