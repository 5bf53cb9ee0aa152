"""The whole state after one record, in few bytes: what a tape steps on from. Blocks are arrays, compressed."""

from __future__ import annotations

import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np

from engine.protocol import Record, Snapshot
from tui.block_columns import BlockColumns
from tui.fold import EngineFold
from tui.lanes import Lanes

LARGE = 4 << 20  # bytes that are compressed beside the loop: half a second of a million blocks

_packer = ThreadPoolExecutor(1, "keyframes")
_COLUMNS = tuple(name for name in BlockColumns.__slots__ if name != "touched")
_pack = msgspec.msgpack.Encoder().encode


class _Rest(msgspec.Struct, frozen=True):
    """All but blocks and tables; requests in the order of the fold's."""

    snapshot: Snapshot
    ordinals: dict[str, int]
    seen: int
    lanes: dict[str, int]
    record: Record | None


_unpack = msgspec.msgpack.Decoder(_Rest).decode


def _compress(parts: list[bytes]) -> tuple[bytes, ...]:
    return tuple(zlib.compress(part, 1) for part in parts)


@dataclass(frozen=True, slots=True)
class Keyframe:
    """The state after record `seq`. `whole`: all blocks; otherwise those that differ from the whole one before it."""

    seq: int
    whole: bool
    blocks: int  # how many it tells of, in the pool and in tables
    _packing: Future[tuple[bytes, ...]]
    _raw_size: int

    @property
    def packed(self) -> tuple[bytes, ...]:
        """Compressed: the rest, the tables' lengths and blocks, the ids of blocks, and their columns."""
        return self._packing.result()

    @property
    def packs(self) -> bool:
        """It is still being compressed."""
        return not self._packing.done()

    @property
    def size(self) -> int:
        """Bytes; while it is being compressed, as many as it had before."""
        return self._raw_size if self.packs else sum(len(part) for part in self.packed)

    @classmethod
    def of(cls, fold: EngineFold, lanes: Lanes, whole: bool) -> Keyframe:
        """Unless `whole`, with the blocks that were touched since the last whole one; that one clears the marks."""
        columns = fold.blocks
        if whole:
            columns.touched[:] = False
        ids = np.empty(0, np.int64) if whole else np.flatnonzero(columns.touched)
        requests = tuple(msgspec.structs.replace(state, table=()) for state in fold.requests.values())
        tables = [state.table for state in fold.requests.values()]
        logical = sum(len(table) for table in tables)
        rest = _Rest(
            Snapshot(
                seq=fold.seq,
                time=fold.time,
                engine=fold.engine,
                control=fold.control,
                requests=requests,
                blocks=(),
                pool=fold.pool,
                waste=fold.waste,
                sharing=fold.sharing,
                queue=fold.queue,
                counters=fold.counters,
                host_blocks=fold.host_blocks,
            ),
            fold.ordinals,
            fold.seen,
            lanes.by_request,
            fold.record,
        )
        parts = [
            _pack(rest),
            np.array([len(table) for table in tables], np.int32).tobytes(),
            np.fromiter(chain.from_iterable(tables), np.int32, logical).tobytes(),
            ids.astype(np.int32).tobytes(),
        ]
        for name in _COLUMNS:
            column = getattr(columns, name)
            parts.append((column if whole else column[ids]).tobytes())
        told = logical + (len(columns) if whole else len(ids))
        raw_size = sum(len(part) for part in parts)
        if raw_size > LARGE:
            packing = _packer.submit(_compress, parts)
        else:
            packing = Future()
            packing.set_result(_compress(parts))
        return cls(fold.seq, whole, told, packing, raw_size)

    def restore(self, base: Keyframe) -> tuple[EngineFold, Lanes]:
        """The state again. `base` is the whole one that this goes on from, or itself."""
        rest_bytes, lengths_bytes, tables_bytes, ids_bytes, *columns = self.packed
        rest = _unpack(zlib.decompress(rest_bytes))
        ends = np.cumsum(np.frombuffer(zlib.decompress(lengths_bytes), np.int32)).tolist()
        ids = np.frombuffer(zlib.decompress(tables_bytes), np.int32).tolist()
        starts = [0, *ends]
        requests = {
            state.request: msgspec.structs.replace(state, table=tuple(ids[start:end]))
            for state, start, end in zip(rest.snapshot.requests, starts, ends, strict=False)
        }
        blocks = BlockColumns(0)
        for name, part in zip(_COLUMNS, base.packed[4:], strict=True):
            # A bytearray is what numpy may write to.
            setattr(blocks, name, np.frombuffer(bytearray(zlib.decompress(part)), getattr(blocks, name).dtype))
        blocks.touched = np.zeros(len(blocks), np.bool_)
        if not self.whole:
            changed = np.frombuffer(zlib.decompress(ids_bytes), np.int32)
            for name, part in zip(_COLUMNS, columns, strict=True):
                column = getattr(blocks, name)
                column[changed] = np.frombuffer(zlib.decompress(part), column.dtype)
        fold = EngineFold.restored(rest.snapshot, requests, rest.ordinals, rest.seen, blocks, rest.record)
        return fold, Lanes(rest.lanes)
