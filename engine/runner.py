"""Computes a planned step on a device: moves blocks, flattens rows into tensors, runs the model, samples."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from mmap import mmap

import numpy as np
import torch

from engine.cpu_decoder import CPUDecoder
from engine.cuda_graphs import DecodeGraphs, capture_on_gpu, takes, warm_up_steps
from engine.model import Decoder, layer_caches
from engine.plan import FixedRequest, PlannedRow, ScoredToken, StepPlan, StepResult
from engine.prompt_scores import score_prompts
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.threads import waits_asleep
from kernels.attention import AttentionMetadata
from kernels.blocks import copy_blocks
from kernels.upload import upload

UNUSABLE_LOGITS = "no token can be chosen: the logits are not finite numbers, or every token is forbidden"


class ModelRunner:
    """The engine's `Runner` over a real model; owns the KV blocks, on the device and in host memory, and decides
    nothing. The host's take memory as they are first used, unless they must be pinned for a GPU.

    The device's lie in `memory`, if others are to read them there."""

    def __init__(
        self,
        model: Decoder | CPUDecoder,
        sampler: Sampler,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        memory: mmap | None = None,
    ) -> None:
        self.model = model
        self.sampler = sampler
        self.block_size = block_size
        self.blocks = model.allocate_kv(num_blocks, block_size, memory)
        self.caches = layer_caches(self.blocks)
        on_gpu = model.device.type == "cuda"
        host_shape = (num_host_blocks, *self.blocks.shape[1:])
        self.host_blocks = torch.empty(host_shape, dtype=self.blocks.dtype, pin_memory=on_gpu and num_host_blocks > 0)
        self.graphs: DecodeGraphs | None = None
        if on_gpu and isinstance(model, Decoder) and model.triton:
            self.graphs = DecodeGraphs(model, self.caches, capture_on_gpu())

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        """Compute `rows`; a draw from logits that are unusable fails alone, and so does a prompt's scoring.

        Raises MemoryError if there is no memory for so many, on the device or the host.
        """
        try:
            return self._compute(rows)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            raise MemoryError(str(error)) from None

    def _compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        clock = _Clock(self.model.device)
        graphs = self.graphs if self.graphs is not None and takes(rows) else None
        device = self.model.device if graphs is None else torch.device("cpu")
        token_ids, positions, metadata, last_rows = flatten(rows, self.block_size, device)
        sampling = [row for row in rows if row.samples]
        scoring, scored_rows = _scoring(rows, metadata)
        sampled_rows = last_rows[torch.tensor([row.samples for row in rows], dtype=torch.bool)]
        wanted_rows = torch.cat((sampled_rows, scored_rows)) if scoring else sampled_rows
        clock.mark()
        with _threads_for(self.model.device, small=len(token_ids) <= self.model.small_step):
            if graphs is None:
                tokens_there, positions_there, wanted = upload([token_ids, positions, wanted_rows], device)
                hidden = self.model.hidden(tokens_there, positions_there, metadata, self.caches, wanted)
            else:
                hidden = graphs.hidden(token_ids, positions, metadata)
                hidden = hidden[upload([wanted_rows], hidden.device)[0]]
            logits = self.model.logits(hidden[: len(sampling)])
        clock.mark()
        parts = self.model.parts
        draws, logits = _draws(sampling, logits)
        tokens = self.sampler.sample(logits, draws)
        found = {row.request_id: token for row, token in zip(draws, tokens, strict=True)}
        sampled = {request: token for request, token in found.items() if token is not None}
        failed = dict.fromkeys(found.keys() - sampled.keys(), UNUSABLE_LOGITS)
        scored = score_prompts(self.model, hidden[len(sampling) :], scoring) if scoring else {}
        for row in _unusable(scoring, scored):
            del scored[row.request_id]
            for name in (row.request_id, *(sibling.id for sibling in row.siblings)):
                failed[name] = UNUSABLE_LOGITS
                sampled.pop(name, None)
        clock.mark()
        return StepResult(sampled, *clock.durations(), failed, scored, parts)

    def move(self, plan: StepPlan) -> float:
        """Make the plan's swaps and copies, stage after stage; the seconds that took.

        Raises ValueError for those that cannot be: see `copy_blocks`.
        """
        if not (plan.swap_out or plan.swap_in or plan.copies):
            return 0.0
        begun = time.perf_counter()
        with _threads_for(self.model.device, small=True):
            copy_blocks(self.blocks, self.host_blocks, plan.swap_out)
            copy_blocks(self.host_blocks, self.blocks, plan.swap_in)
            copy_blocks(self.blocks, self.blocks, [(copy.source, copy.target) for copy in plan.copies])
        _wait_for(self.model.device)
        return time.perf_counter() - begun

    def centre_logits(self) -> None:
        """Before the first step: learn where the best logits lie, from some tokens of all the vocabulary.

        On a GPU every kernel is compiled first.
        """
        if self.graphs is not None:
            self.compile_kernels()
        count = min(64, self.caches[0][0].shape[0] * self.block_size, self.model.max_positions)
        stride = max(1, self.model.config.vocab_size // count)
        tokens = [i * stride % self.model.config.vocab_size for i in range(count)]
        blocks = range(-(-count // self.block_size))
        request = FixedRequest("", tokens, count, blocks, SamplingParams(max_tokens=1))
        row = PlannedRow(request, "prefill", 0, count, True)
        device = self.model.device
        token_ids, positions, metadata, _ = flatten([row], self.block_size, device)
        every = torch.arange(count, device=device)
        logits = self.model.forward(token_ids.to(device), positions.to(device), metadata, self.caches, every)
        if isinstance(self.model, Decoder):
            self.model.head.centre(float(logits.max(dim=-1).values.mean()))

    def compile_kernels(self) -> None:
        """Run steps of every kind once, over whatever the first block holds; they write no slot."""
        slots = self.caches[0][0].shape[0] * self.block_size
        for step in warm_up_steps(min(self.model.max_positions, slots)):
            rows = []
            for i, (context, queries) in enumerate(step):
                table = [0] * -(-context // self.block_size)
                request = FixedRequest(str(i), [0] * context, 1, table, SamplingParams(max_tokens=1))
                rows.append(PlannedRow(request, "held", context - queries, queries, True))
            self.compute(rows)


def _draws(sampling: list[PlannedRow], logits: torch.Tensor) -> tuple[list[PlannedRow], torch.Tensor]:
    """A row, and its logits, for each token to draw: where siblings fork off, one row of logits serves them all."""
    if not any(row.siblings for row in sampling):
        return sampling, logits
    draws = [row.draws for row in sampling]
    (places,) = upload([torch.tensor([i for i, same in enumerate(draws) for _ in same])], logits.device)
    return [draw for same in draws for draw in same], logits[places]


def _scoring(rows: Sequence[PlannedRow], metadata: AttentionMetadata) -> tuple[list[PlannedRow], torch.Tensor]:
    """The rows whose prompts are scored, and where in the step the tokens before the scored ones lie: int64 [S]."""
    places = [i for i, row in enumerate(rows) if row.kind == "prefill" and row.scored]
    starts = metadata.host_query_starts
    found = [np.arange(starts[i], starts[i] + len(rows[i].scored), dtype=np.int64) for i in places]
    return [rows[i] for i in places], torch.from_numpy(np.concatenate(found or [np.empty(0, np.int64)]))


def _unusable(scoring: list[PlannedRow], scored: dict[str, tuple[ScoredToken, ...]]) -> list[PlannedRow]:
    """The rows whose scores are not numbers."""
    return [row for row in scoring if not all(math.isfinite(token.logprob) for token in scored[row.request_id])]


def lacks_memory(error: RuntimeError) -> bool:
    """Whether torch, a library under it or a kernel's launch says that memory was not to be had."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    told = str(error).lower()
    return any(words in told for words in ("out of memory", "can't allocate memory", "alloc_failed"))


class _Clock:
    """The durations of a step's parts, in seconds. A GPU's own work is timed by events in its queue, so that the host
    need not wait for it in between."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._times = [time.perf_counter()]
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """A part ends here."""
        self._times.append(time.perf_counter())
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._events.append(event)

    def durations(self) -> tuple[float, float, float]:
        """Of the three parts: prepare, forward, sample. Waits for what was queued before the last mark."""
        begun, prepared, computed, ended = self._times
        if not self._events:
            return prepared - begun, computed - prepared, ended - computed
        first, second, last = self._events
        last.synchronize()
        ended = time.perf_counter()
        forward = min(first.elapsed_time(second) / 1000, ended - prepared)
        return prepared - begun, forward, ended - prepared - forward


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def _threads_for(device: torch.device, *, small: bool) -> Iterator[None]:
    """Use one thread for a small piece of work whose threads would sleep while they wait."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or not small or not waits_asleep():
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def flatten(
    rows: Sequence[PlannedRow], block_size: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata, torch.Tensor]:
    """Token ids [T] and positions [T] (int64, on the host), the attention's layout, each row's last place [B]."""
    counts = np.fromiter((row.count for row in rows), np.int64, len(rows))
    starts = np.fromiter((row.start for row in rows), np.int64, len(rows))
    held = np.fromiter((row.kind == "held" for row in rows), np.bool_, len(rows))
    contexts = starts + counts
    query_starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=query_starts[1:])
    tokens = np.empty(int(query_starts[-1]), np.int64)
    tables = np.zeros((len(rows), int(-(-contexts.max() // block_size))), np.int32)
    for i, row in enumerate(rows):
        begin, end = row.start, row.start + row.count
        tokens[query_starts[i] : query_starts[i + 1]] = row.request.tokens[begin:end]
        blocks = row.request.table[: -(-end // block_size)]
        tables[i, : len(blocks)] = blocks
    owner = np.repeat(np.arange(len(rows)), counts)
    positions = np.arange(len(tokens)) + (starts - query_starts[:-1])[owner]
    slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    slots[held[owner]] = -1
    metadata = AttentionMetadata.build(
        torch.from_numpy(tables),
        torch.from_numpy(query_starts),
        torch.from_numpy(contexts.astype(np.int32)),
        torch.from_numpy(slots),
        device=device,
    )
    last_rows = torch.from_numpy(query_starts[1:].astype(np.int64) - 1)
    return torch.from_numpy(tokens), torch.from_numpy(positions), metadata, last_rows
