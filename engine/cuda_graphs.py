"""Steps of decodes alone as CUDA graphs: a launch for the whole decoder, where its hundreds would cost more time than
they work at small batches.

A graph repeats its launches with the same memory and shapes. So there is one for each of a few batch sizes, over inputs
that stay in place: a step's rows are copied there, and the rest of the batch is padding, which sees no key, writes no
slot, and whose result nobody takes. Each graph is captured when first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.model import Decoder, KVCache
from engine.plan import PlannedRow
from kernels.attention import AttentionMetadata
from kernels.upload import upload

BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
WARM_UPS = 2  # before a capture, so that nothing is compiled or allocated for good within it

Replay = Callable[[], Tensor]  # computes again from what the inputs now hold, into the same result
Capture = Callable[[Callable[[], Tensor]], Replay]


@dataclass(frozen=True)
class Batch:
    """One step's rows, padded: CPU tensors. Tables hold the rows of the step alone."""

    token_ids: Tensor  # int64 [B], as positions and slots
    positions: Tensor
    slots: Tensor
    context_lengths: Tensor  # int32 [B]
    block_tables: Tensor  # int32 [rows, blocks]


def choose_size(rows: int) -> int | None:
    """The smallest batch size that holds `rows`, None if none does."""
    return next((size for size in BATCH_SIZES if rows <= size), None)


def takes(rows: Sequence[PlannedRow]) -> bool:
    """Whether every row feeds one token, and a graph holds them all."""
    return choose_size(len(rows)) is not None and all(row.count == 1 for row in rows)


def warm_up_steps(longest: int) -> list[list[tuple[int, int]]]:
    """(context, queries) of the rows of some steps that between them launch every kernel a model has, each in every way
    there is: chunks of few queries and of many, decodes beside them with splits and without, decodes alone.

    `longest` bounds the contexts. Without such steps the first request to need a kernel would wait for its compiler.
    """
    few, many = min(2, longest), min(512, longest)
    return [[(longest, few), (longest, 1)], [(longest, many), (1, 1)], [(longest, 1)]]


def pad(token_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, size: int) -> Batch:
    """A step of one token a row as a batch of `size`."""

    def padded(rows: Tensor, filler: int) -> Tensor:
        return torch.nn.functional.pad(rows, (0, size - len(rows)), value=filler)

    return Batch(
        token_ids=padded(token_ids, 0),
        positions=padded(positions, 0),
        slots=padded(torch.from_numpy(metadata.host_slots), -1),
        context_lengths=padded(torch.from_numpy(metadata.host_context_lengths), 0),
        block_tables=torch.from_numpy(metadata.host_block_tables),
    )


def capture_on_gpu() -> Capture:
    """Captures whose graphs share memory for what they compute in between: they never run at the same time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(compute: Callable[[], Tensor]) -> Replay:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = compute()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    return capture


@dataclass(frozen=True)
class _Graph:
    """A batch's inputs, on the device and in place, and what computes from them.

    A graph reads memory by its address and keeps none of it from being used for something else: `compute` does.
    """

    token_ids: Tensor
    positions: Tensor
    metadata: AttentionMetadata
    compute: Callable[[], Tensor]
    replay: Replay


class DecodeGraphs:
    """The graphs of a model over its caches, whose attention must be Triton's: it reads contexts on the device."""

    def __init__(self, model: Decoder, caches: Sequence[KVCache], capture: Capture) -> None:
        self._model = model
        self._caches = caches
        self._capture = capture
        self._graphs: dict[int, _Graph] = {}

    @torch.inference_mode()
    def hidden(self, token_ids: Tensor, positions: Tensor, metadata: AttentionMetadata) -> Tensor:
        """As `Decoder.hidden` of every row, for a step that `takes` allows; valid until the next call.

        token_ids and positions int64 [rows], and the metadata, on the host. Raises ValueError for too many rows.
        """
        rows = len(token_ids)
        size = choose_size(rows)
        if size is None:
            raise ValueError(f"a graph holds at most {BATCH_SIZES[-1]} rows, got {rows}")
        graph = self._graphs.get(size)
        if graph is None:
            graph = self._graphs[size] = self._build(size)
        batch = pad(token_ids, positions, metadata, size)
        sources = [batch.token_ids, batch.positions, batch.slots, batch.context_lengths, batch.block_tables]
        static = graph.metadata
        tables = static.block_tables[:rows, : batch.block_tables.shape[1]]
        targets = [graph.token_ids, graph.positions, static.slots, static.context_lengths, tables]
        for target, source in zip(targets, upload(sources, self._model.device), strict=True):
            target.copy_(source)
        return graph.replay()[:rows]

    def _build(self, size: int) -> _Graph:
        """A graph over padding alone. Launches are chosen on the host, once: for the longest context there can be."""
        model, device = self._model, self._model.device
        longest, block_size = model.max_positions, self._caches[0][0].shape[2]
        worst = AttentionMetadata.build(
            torch.zeros(size, -(-longest // block_size), dtype=torch.int32),
            torch.arange(size + 1, dtype=torch.int32),
            torch.full((size,), longest, dtype=torch.int32),
            torch.full((size,), -1, dtype=torch.int64),
            device=device,
        )
        metadata = replace(
            worst,
            block_tables=worst.block_tables.clone(),
            context_lengths=torch.zeros_like(worst.context_lengths),
            slots=worst.slots.clone(),
        )
        token_ids, positions, every = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(3))
        torch.arange(size, out=every)

        def compute() -> Tensor:
            return model.hidden(token_ids, positions, metadata, self._caches, every)

        return _Graph(token_ids, positions, metadata, compute, self._capture(compute))
