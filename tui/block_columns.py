"""Every physical block of the pool by column: a million of them are a few arrays, not a million objects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.protocol import Block, BlockState

FREE, CACHED, RESERVED, FILLING, FULL, SHARED = range(6)
STATES: dict[BlockState, int] = {
    "free": FREE,
    "cached": CACHED,
    "reserved": RESERVED,
    "filling": FILLING,
    "full": FULL,
    "shared": SHARED,
}
NAMES: tuple[BlockState, ...] = tuple(STATES)
UNKNOWN = -1  # a parent or an owner that has not been seen


class BlockColumns:
    """One entry per block, each [blocks].

    `state` uint8; `filled` int32 slots; `references` int32; `hashed` bool; `owner` int32, the ordinal of the request
    that holds it, of a shared one of any that does; `parent` int32, the block before it in the tables that held it;
    `hits` uint32, how often it was found in the cache; `changed` int64, the last record that told of it (0: none
    since this screen has watched); `since` float64, when it was last taken, on the engine's clock (NaN: before that).
    `touched` bool: anything of it was written since whoever keeps the past last looked.
    """

    __slots__ = ("changed", "filled", "hashed", "hits", "owner", "parent", "references", "since", "state", "touched")

    def __init__(self, blocks: int) -> None:
        self.state: npt.NDArray[np.uint8] = np.zeros(blocks, np.uint8)
        self.filled: npt.NDArray[np.int32] = np.zeros(blocks, np.int32)
        self.references: npt.NDArray[np.int32] = np.zeros(blocks, np.int32)
        self.hashed: npt.NDArray[np.bool_] = np.zeros(blocks, np.bool_)
        self.owner: npt.NDArray[np.int32] = np.full(blocks, UNKNOWN, np.int32)
        self.parent: npt.NDArray[np.int32] = np.full(blocks, UNKNOWN, np.int32)
        self.hits: npt.NDArray[np.uint32] = np.zeros(blocks, np.uint32)
        self.changed: npt.NDArray[np.int64] = np.zeros(blocks, np.int64)
        self.since: npt.NDArray[np.float64] = np.full(blocks, np.nan, np.float64)
        self.touched: npt.NDArray[np.bool_] = np.zeros(blocks, np.bool_)

    def __len__(self) -> int:
        return len(self.state)

    def put(self, blocks: Sequence[Block]) -> npt.NDArray[np.int64]:
        """Take what a snapshot or a record says of some blocks; returns their ids [len(blocks)]."""
        at = np.array([block.block for block in blocks], np.int64)
        self.state[at] = np.array([STATES[block.state] for block in blocks], np.uint8)
        self.filled[at] = np.array([block.filled for block in blocks], np.int32)
        self.references[at] = np.array([block.references for block in blocks], np.int32)
        self.hashed[at] = np.array([block.hashed for block in blocks], np.bool_)
        self.touched[at] = True
        return at

    def counts(self) -> tuple[int, ...]:
        """How many blocks are in each state, in the order of `NAMES`."""
        return tuple(np.bincount(self.state, minlength=len(NAMES)).tolist())

    def block(self, at: int) -> Block:
        """One block as the protocol has it."""
        return Block(
            block=at,
            state=NAMES[self.state[at]],
            references=int(self.references[at]),
            filled=int(self.filled[at]),
            hashed=bool(self.hashed[at]),
        )
