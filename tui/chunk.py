"""A chunk of a tape: what was kept one after the other, compressed as one."""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class Chunk:
    """Items from number `first` on: compressed as one once there are enough of them. `size` is in bytes."""

    first: int
    ends: array[int] = field(default_factory=lambda: array("q"))  # of each, in the bytes
    open: list[bytes] = field(default_factory=list)
    packed: bytes = b""
    size: int = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self.ends.append(self.size)
        self.open.append(data)

    def close(self) -> None:
        self.packed = zlib.compress(b"".join(self.open), 1)
        self.size = len(self.packed) + 8 * len(self.ends)
        self.open = []

    def data(self) -> list[bytes]:
        if not self.packed:
            return self.open
        whole = zlib.decompress(self.packed)
        return [whole[start:end] for start, end in zip([0, *self.ends], self.ends, strict=False)]
