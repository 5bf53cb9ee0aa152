"""The swap space: blocks of host memory that hold the KV of preempted requests."""

from __future__ import annotations

from collections.abc import Iterable

from engine.block_pool import IllegalState


class HostPool:
    """`num_blocks` host blocks, each held by as many requests as shared the device block it was copied from."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def allocate(self) -> int:
        if not self._free:
            raise IllegalState("no host block is free")
        block = self._free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        if not self.references[block]:
            raise IllegalState(f"host block {block} is free: it has no contents to share")
        self.references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if not self.references[block]:
                raise IllegalState(f"host block {block} is released and nobody holds it")
            self.references[block] -= 1
            if not self.references[block]:
                self._free.append(block)
