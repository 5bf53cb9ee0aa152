"""What one step's attention calls share: which rows belong to whom, computed once and used by every layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.upload import upload

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """One step's layout. Build it with `build`; do not change the tensors afterwards.

    Sequence b's queries are rows `query_starts[b]:query_starts[b + 1]`, and they are the last of its
    `context_lengths[b]` positions. Position p lies in block `block_tables[b, p // block_size]`.
    The `host_` arrays hold the same values for decisions on the host, so that no layer waits for a device.
    """

    block_tables: Tensor  # int32 [B, max_blocks]; entries past a sequence's need are never used
    query_starts: Tensor  # int32 [B + 1]
    context_lengths: Tensor  # int32 [B], KV tokens including this step's
    slots: Tensor  # int64 [T], where each row's KV goes: block * block_size + offset, or -1 for nowhere
    host_block_tables: IntArray
    host_query_starts: IntArray
    host_context_lengths: IntArray
    host_slots: npt.NDArray[np.int64]
    prepared: dict[object, Any] = field(default_factory=dict, repr=False)  # what backends derived from it

    @classmethod
    def build(
        cls,
        block_tables: Tensor,
        query_starts: Tensor,
        context_lengths: Tensor,
        slots: Tensor,
        *,
        device: torch.device | str | None = None,
    ) -> AttentionMetadata:
        """Check one step's layout and keep it for all layers.

        block_tables int32 [B, max_blocks], query_starts int32 [B + 1], context_lengths int32 [B],
        slots int64 [T]. Give CPU tensors, and `device` for where attention runs: tensors that already lie on
        a device are copied back once, which waits for it.
        Raises TypeError for a wrong dtype and ValueError for a layout that cannot be.
        """
        tensors = {
            "block_tables": (block_tables, torch.int32, 2),
            "query_starts": (query_starts, torch.int32, 1),
            "context_lengths": (context_lengths, torch.int32, 1),
            "slots": (slots, torch.int64, 1),
        }
        for name, (tensor, dtype, dims) in tensors.items():
            if tensor.dtype != dtype:
                raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}")
            if tensor.dim() != dims:
                raise ValueError(f"{name} must have {dims} dimensions, got {tensor.dim()}")
        target = torch.device(device) if device is not None else block_tables.device
        tables, starts, lengths, slot_array = (tensor.contiguous().cpu().numpy() for tensor, _, _ in tensors.values())
        _check_layout(tables, starts, lengths, slot_array)
        if all(tensor.device.type == "cpu" for tensor, _, _ in tensors.values()):
            on_device = upload([tensor.contiguous() for tensor, _, _ in tensors.values()], target)
        else:
            on_device = [tensor.contiguous().to(target) for tensor, _, _ in tensors.values()]
        return cls(
            block_tables=on_device[0],
            query_starts=on_device[1],
            context_lengths=on_device[2],
            slots=on_device[3],
            host_block_tables=tables,
            host_query_starts=starts,
            host_context_lengths=lengths,
            host_slots=slot_array,
        )

    @property
    def num_sequences(self) -> int:
        return len(self.host_context_lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.host_slots)

    def check_cache(self, num_blocks: int, block_size: int) -> None:
        """Raise ValueError if a block or slot in use lies outside a cache of this shape.

        The first call does the work, later ones for the same shape cost a look-up.
        """
        key = ("checked", num_blocks, block_size)
        if key in self.prepared:
            return
        needed = -(-self.host_context_lengths // block_size)
        width = self.host_block_tables.shape[1]
        if needed.size and needed.max() > width:
            b = int(needed.argmax())
            raise ValueError(
                f"context_lengths[{b}] is {self.host_context_lengths[b]}: it needs {needed[b]} blocks of "
                f"{block_size}, but block_tables has {width}"
            )
        used = np.arange(width, dtype=np.int32) < needed[:, None]
        wrong = used & ((self.host_block_tables < 0) | (self.host_block_tables >= num_blocks))
        if wrong.any():
            b, i = (int(x) for x in np.argwhere(wrong)[0])
            raise ValueError(f"block_tables[{b}, {i}] is {self.host_block_tables[b, i]}, outside 0..{num_blocks - 1}")
        if self.host_slots.size and (self.host_slots.min() < -1 or self.host_slots.max() >= num_blocks * block_size):
            raise ValueError(f"slots must lie in -1..{num_blocks * block_size - 1}")
        self.prepared[key] = True


def _check_layout(tables: IntArray, starts: IntArray, lengths: IntArray, slots: npt.NDArray[np.int64]) -> None:
    sequences = len(lengths)
    if len(tables) != sequences or len(starts) != sequences + 1:
        raise ValueError(
            f"block_tables has {len(tables)} rows, context_lengths {sequences} entries and query_starts "
            f"{len(starts)}; they must be B, B and B + 1"
        )
    query_lengths = np.diff(starts)
    if starts[0] != 0 or (query_lengths < 0).any():
        raise ValueError("query_starts must start at 0 and never fall")
    if starts[-1] != len(slots):
        raise ValueError(f"query_starts ends at {starts[-1]}, but slots has {len(slots)} entries")
    if (lengths < query_lengths).any():
        b = int((lengths < query_lengths).argmax())
        raise ValueError(f"context_lengths[{b}] is {lengths[b]}, less than its {query_lengths[b]} queries of this step")
