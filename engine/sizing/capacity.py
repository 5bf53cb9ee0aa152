"""The whole answer of `paged-engine plan`, as data: every figure, and in words what it rests on."""

from __future__ import annotations

import msgspec

from engine.kv_manager import blocks_for
from engine.sizing.blocks import (
    BlockSizeCost,
    Lengths,
    Sharing,
    Usage,
    at_end,
    block_size_costs,
    own_blocks,
    while_running,
)
from engine.sizing.memory import KV_BYTES, KVDtype, Memory, SizingError, check_devices, kv_dtype, weigh
from engine.sizing.shape import Attention, ModelShape, Parameters
from engine.sizing.units import in_bytes


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked; sizes in bytes, the rest in tokens. `lengths_source` says where `lengths` are from."""

    shape: ModelShape | None
    memory: int | None
    utilization: float
    overhead: int
    devices: int
    weights_bits: int | None
    weights: int | None
    kv_dtype: KVDtype
    kv_bytes_per_token: int | None
    context: int
    block_size: int
    lengths: Lengths
    lengths_source: str
    lengths_assumed: bool
    left_out: int  # requests longer than `context`
    sessions: int | None
    shared_tokens: int | None
    lookup_bytes: int


class ModelFacts(msgspec.Struct, frozen=True):
    name: str
    model_type: str
    layers: int
    attention: Attention
    heads: int
    kv_heads: int
    parameters: Parameters
    total_parameters: int
    sliding_layers: int
    window: int
    max_context: int | None


class MemoryFacts(msgspec.Struct, frozen=True):
    """Bytes on each device."""

    total: int
    usable: int
    weights: int
    overhead: int
    kv: int


class KVFacts(msgspec.Struct, frozen=True):
    """Bytes and blocks on each device; a block's number is the same on all."""

    bytes_per_token: int
    bytes_per_block: int
    bytes_per_context: int
    bytes_per_context_windowed: int | None  # if layers that slide keep their window alone
    num_blocks: int | None
    num_slots: int | None


class RequestFacts(msgspec.Struct, frozen=True):
    """Requests one by one, as means; `reserved` is one run of slots for the whole context, `paged` holds blocks."""

    count: int
    left_out: int
    assumed: bool  # nobody said how long they are
    mean_prompt_tokens: float
    mean_output_tokens: float
    tokens: float
    reserved_slots: int
    reserved_used: float
    paged_blocks: float
    paged_slots: float
    paged_empty: float
    paged_empty_of_tokens: float


class Concurrency(msgspec.Struct, frozen=True):
    """Requests that fit at once. Of a trace, those are the mix that runs: long answers run longer."""

    reserved: int
    paged: int  # each at its longest
    paged_blocks: float  # of each, then
    paged_running: int  # each as it is found at a decode step
    paged_running_blocks: float
    paged_sharing: int | None  # as `paged`, with a prefix held once


class SharingFacts(msgspec.Struct, frozen=True):
    """Slots that the common tokens of all sessions fill, and their bytes where these are known."""

    sessions: int
    tokens: int
    shared_blocks: int
    left_over: int
    tokens_apart: int
    tokens_shared_blocks: int
    tokens_left_over: int
    bytes_per_token: int | None


class CapacityPlan(msgspec.Struct, frozen=True):
    """`assumptions` has a line for each figure that rests on one."""

    model: ModelFacts | None
    devices: int
    context: int
    block_size: int
    memory: MemoryFacts | None
    kv: KVFacts | None
    requests: RequestFacts
    concurrency: Concurrency | None
    sharing: SharingFacts | None
    block_sizes: tuple[BlockSizeCost, ...]
    best_block_size: int | None
    assumptions: dict[str, str]
    notes: tuple[str, ...]


def plan_capacity(question: Question) -> CapacityPlan:
    """Work everything out that can be known from what was given. Raises SizingError."""
    shape, size = question.shape, question.block_size
    assumptions: dict[str, str] = {}
    notes = list(shape.notes) if shape else []
    if shape:
        check_devices(shape, question.devices)
    kv_bytes = _kv_bytes(question, assumptions)
    memory = _memory(question, assumptions)
    kv = _kv(question, kv_bytes, memory, notes)
    final, running = at_end(question.lengths, size), while_running(question.lengths, size)
    assumptions["requests"] = question.lengths_source
    concurrency = None
    if kv and kv.num_blocks is not None:
        concurrency = _concurrency(question, kv.num_blocks, running)
        assumptions["concurrency"] = (
            "all blocks are taken; engines keep some free for running requests, this one a block each"
        )
        if not concurrency.reserved:
            notes.append(
                f"one request of {question.context:,} tokens does not fit: "
                "vLLM would not start with this --max-model-len"
            )
    costs: tuple[BlockSizeCost, ...] = ()
    if shape and kv_bytes:
        costs = block_size_costs(question.lengths, kv_bytes, shape.num_layers, question.lookup_bytes)
        assumptions["tail"] = (
            "the last block of a running request is half empty, (size - 1) / 2 slots"
            if question.lengths.typical
            else "empty slots of running requests, over all decode steps of the trace"
        )
        assumptions["lookup"] = (
            f"a lookup reads {question.lookup_bytes} bytes for each block in each layer at each step (--lookup-bytes)"
        )
    if shape and shape.max_context and question.context > shape.max_context:
        notes.append(f"--context {question.context:,} is beyond the model's own {shape.max_context:,}")
    if question.left_out:
        everyone = question.left_out + len(question.lengths.requests)
        notes.append(
            f"{question.left_out:,} of {everyone:,} requests of the trace are longer than --context and left out"
        )
    return CapacityPlan(
        model=_model(shape) if shape else None,
        devices=question.devices,
        context=question.context,
        block_size=size,
        memory=memory,
        kv=kv,
        requests=_requests(question, final),
        concurrency=concurrency,
        sharing=_sharing(question, kv_bytes),
        block_sizes=costs,
        best_block_size=min(costs, key=lambda cost: cost.together).block_size if costs else None,
        assumptions=assumptions,
        notes=tuple(notes),
    )


def _model(shape: ModelShape) -> ModelFacts:
    return ModelFacts(
        name=shape.name,
        model_type=shape.model_type,
        layers=shape.num_layers,
        attention=shape.attention,
        heads=shape.num_heads,
        kv_heads=max(shape.kv_heads),
        parameters=shape.parameters,
        total_parameters=shape.parameters.total,
        sliding_layers=shape.sliding_layers,
        window=shape.window,
        max_context=shape.max_context,
    )


def _kv_bytes(question: Question, assumptions: dict[str, str]) -> int | None:
    if question.kv_bytes_per_token is not None:
        assumptions["kv_bytes_per_token"] = "--kv-bytes-per-token"
        return question.kv_bytes_per_token
    shape = question.shape
    if shape is None:
        return None
    name = kv_dtype(shape, question.kv_dtype)
    if shape.latent_dim:
        terms = f"{shape.num_layers} layers x {shape.latent_dim} (the latent and its rotated key)"
    else:
        most = max(shape.kv_heads)
        heads = -(-most // question.devices)
        what = f"{heads} KV head{'s' if heads > 1 else ''}"
        if shape.key_dim == shape.value_dim:
            terms = f"2 x {shape.num_layers} layers x {what} x {shape.key_dim}"
        else:
            terms = f"{shape.num_layers} layers x {what} x ({shape.key_dim} + {shape.value_dim})"
        if min(shape.kv_heads) != most:
            terms += " at most"
    size = KV_BYTES[name]
    assumptions["kv_bytes_per_token"] = f"{terms} x {size} B ({name})"
    return shape.kv_elements(question.devices) * size


def _memory(question: Question, assumptions: dict[str, str]) -> MemoryFacts | None:
    if question.memory is None:
        return None
    if question.weights is not None:
        weights, assumptions["weights"] = -(-question.weights // question.devices), "--weights"
    elif question.shape is not None:
        weighed = weigh(question.shape, question.weights_bits, question.devices)
        weights, assumptions["weights"] = weighed.bytes, weighed.basis
    else:
        weights, assumptions["weights"] = 0, "no --model and no --weights"
    memory = Memory(question.memory, question.utilization, weights, question.overhead)
    assumptions["usable"] = f"{question.utilization:g} of it (--gpu-memory-utilization)"
    assumptions["overhead"] = (
        "--overhead"
        if question.overhead
        else "none assumed: activations and CUDA graphs, which vLLM logs at start, go to --overhead"
    )
    if memory.for_kv < 1:
        raise SizingError(
            f"--memory: nothing is left for KV: weights take {in_bytes(weights)} and overhead "
            f"{in_bytes(question.overhead)} of {in_bytes(memory.usable)} usable; give more, --weights-bits 4 or 8, or "
            "--tensor-parallel-size"
        )
    return MemoryFacts(memory.total, memory.usable, weights, question.overhead, memory.for_kv)


def _kv(question: Question, kv_bytes: int | None, memory: MemoryFacts | None, notes: list[str]) -> KVFacts | None:
    if kv_bytes is None:
        return None
    shape, block_bytes, num_blocks = question.shape, kv_bytes * question.block_size, None
    if memory:
        num_blocks = memory.kv // block_bytes
        if num_blocks < 1:
            raise SizingError(
                f"--memory: the {in_bytes(memory.kv)} left for KV hold no block of {question.block_size} tokens, "
                f"which takes {in_bytes(block_bytes)}"
            )
    windowed = None
    if shape and shape.sliding_layers and question.kv_bytes_per_token is None:
        per_layer = kv_bytes // shape.num_layers
        kept = min(question.context, shape.window)
        full = shape.num_layers - shape.sliding_layers
        windowed = per_layer * (full * question.context + shape.sliding_layers * kept)
        which = f"{shape.sliding_layers} of {shape.num_layers} layers" if full else "all layers"
        notes.append(
            f"{which} attend to {shape.window:,} tokens, and are counted in full; an engine that drops what is out of "
            f"their window (vLLM's hybrid KV cache) keeps {in_bytes(windowed)} of {question.context:,} tokens, not "
            f"{in_bytes(kv_bytes * question.context)}"
        )
    return KVFacts(
        bytes_per_token=kv_bytes,
        bytes_per_block=block_bytes,
        bytes_per_context=kv_bytes * question.context,
        bytes_per_context_windowed=windowed,
        num_blocks=num_blocks,
        num_slots=None if num_blocks is None else num_blocks * question.block_size,
    )


def _requests(question: Question, final: Usage) -> RequestFacts:
    requests = question.lengths.requests
    slots = blocks_for(question.context, question.block_size) * question.block_size
    return RequestFacts(
        count=len(requests),
        left_out=question.left_out,
        assumed=question.lengths_assumed,
        mean_prompt_tokens=sum(prompt for prompt, _ in requests) / len(requests),
        mean_output_tokens=sum(output for _, output in requests) / len(requests),
        tokens=float(final.tokens),
        reserved_slots=slots,
        reserved_used=float(final.tokens / slots),
        paged_blocks=float(final.blocks),
        paged_slots=float(final.blocks * question.block_size),
        paged_empty=float(final.empty),
        paged_empty_of_tokens=float(final.fragmentation),
    )


def _concurrency(question: Question, num_blocks: int, running: Usage) -> Concurrency:
    lengths, size, shared = question.lengths, question.block_size, question.shared_tokens
    sharing = None
    if shared is not None:
        prefix = min(shared, max(prompt for prompt, _ in lengths.requests) - 1) // size
        sharing = int(max(0, num_blocks - prefix) // own_blocks(lengths, size, shared))
    longest = own_blocks(lengths, size)
    return Concurrency(
        reserved=num_blocks // blocks_for(question.context, size),
        paged=int(num_blocks // longest),
        paged_blocks=float(longest),
        paged_running=int(num_blocks // running.blocks),
        paged_running_blocks=float(running.blocks),
        paged_sharing=sharing,
    )


def _sharing(question: Question, kv_bytes: int | None) -> SharingFacts | None:
    if question.sessions is None or question.shared_tokens is None:
        return None
    sharing = Sharing(question.sessions, question.shared_tokens, question.block_size)
    return SharingFacts(
        sessions=sharing.sessions,
        tokens=sharing.tokens,
        shared_blocks=sharing.shared_blocks,
        left_over=sharing.left_over,
        tokens_apart=sharing.tokens_apart,
        tokens_shared_blocks=sharing.shared_blocks * sharing.block_size,
        tokens_left_over=sharing.sessions * sharing.left_over,
        bytes_per_token=kv_bytes,
    )
