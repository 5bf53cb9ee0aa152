"""Put an engine together: resolve and load the model, size the block pool, start the core over the runner."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch

from engine.config import EngineConfig, Transport
from engine.core import EngineCore
from engine.cpu_decoder import load_decoder
from engine.faults import Faults
from engine.loading.cache import tell
from engine.loading.config import ModelConfig
from engine.loading.errors import ModelError
from engine.loading.resolve import ResolvedModel, resolve_model
from engine.loading.weights import Weights
from engine.messages import Pull
from engine.protocol import EngineInfo, Quantize
from engine.quantizer import Quantizer
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.transfer.compatibility import compatibility_of
from engine.transfer.connector import KVConnector, Unavailable
from engine.transfer.parent import ParentConnector
from engine.transfer.pool_memory import PoolMemory, check_others_map, create_memory, own_host, pool_in
from engine.transfer.shared_memory import SharedMemoryConnector
from kernels import attention, cpu_panels, cpu_quantized_tile

CPUINFO = Path("/proc/cpuinfo")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class SettingError(ValueError):
    """A setting that this machine or this model cannot take; the message names its flag and what is allowed."""


@dataclass(frozen=True, slots=True)
class Links:
    """How an engine's connector reaches those around it, from any thread, without waiting for them."""

    wake: Callable[[], None]  # the core's loop: a transfer has ended
    pull: Callable[[Pull], None]  # whoever started the engine


def _unlinked(*_: object) -> None:
    """Nobody is there: whoever steps the engine looks for itself."""


UNLINKED = Links(_unlinked, _unlinked)


def build_core(config: EngineConfig, links: Links = UNLINKED) -> EngineCore:
    """An engine ready to step. Raises ModelError or SettingError, with a message for a person."""
    device = choose_device(config.device)
    check_transfer(config, device)
    dtype = choose_dtype(config.dtype, device)
    resolved = resolve_model(config.model, config.seed)
    model_config = resolved.config
    num_blocks, max_model_len = size_pool(config, model_config, dtype.itemsize)
    num_host_blocks = size_swap_space(config, model_config, dtype.itemsize)
    block_bytes = bytes_per_block(config, model_config, dtype.itemsize)
    check_memory(config.kv_memory, config.swap_space, device)
    check_quantize(config.quantize, dtype, device)
    with Weights(resolved.folder, dtype, device) as weights:
        quantizer = None if config.quantize == "none" else Quantizer(weights, config.quantize)
        model = load_decoder(model_config, weights, max_model_len, quantizer)
        if quantizer is not None:
            tell(f"paged-engine: --quantize {config.quantize}: {quantizer.told()}")
    attention.warm_up(
        model_config.num_heads,
        model_config.num_kv_heads,
        model_config.head_dim,
        dtype,
        config.block_size,
        device=device,
    )
    try:
        sampler = Sampler(resolved.eos_token_ids)
        memory = None if config.transfer == "none" else PoolMemory(num_blocks * block_bytes)
        buffer = None if memory is None else memory.buffer
        runner = ModelRunner(model, sampler, num_blocks, config.block_size, num_host_blocks, buffer)
    except (OSError, RuntimeError, MemoryError) as error:
        raise SettingError(
            f"cannot allocate --kv-memory {config.kv_memory:,} bytes on {device} and --swap-space "
            f"{config.swap_space:,} bytes of host memory: {error}"
        ) from error
    runner.centre_logits()
    info = EngineInfo(
        model=config.model,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        block_size=config.block_size,
        num_blocks=num_blocks,
        kv_bytes_per_token=model_config.kv_bytes_per_token(dtype.itemsize),
        max_model_len=max_model_len,
        version=importlib.metadata.version("paged-top"),
        num_host_blocks=num_host_blocks,
        quantize=config.quantize,
        restarts=config.restarts,
    )
    return EngineCore(
        runner=Faults(config.faults).wrap(runner),
        info=info,
        control=config.control,
        eos_token_ids=resolved.eos_token_ids,
        check_invariants=config.check_invariants,
        kv_events=config.kv_events is not None or config.tell_kv,
        connector=None if memory is None else _connector(config, resolved, info, runner, memory, links),
        lease_seconds=config.lease_seconds,
    )


def _connector(
    config: EngineConfig,
    resolved: ResolvedModel,
    info: EngineInfo,
    runner: ModelRunner,
    memory: PoolMemory,
    links: Links,
) -> KVConnector:
    """How this engine gets others' KV, and they its own, which lies in `memory`. Raises SettingError if they cannot."""
    compatibility = compatibility_of(
        config.model, resolved.folder, resolved.config, info.dtype, config.quantize, config.block_size
    )
    blocks = runner.blocks
    place = memory.place(config.host or own_host(), blocks.shape, blocks.stride(), blocks.element_size())
    try:
        check_others_map(place)
    except Unavailable as error:
        raise SettingError(
            f"transfer {config.transfer}: {error}; this engine can only serve alone (transfer none)"
        ) from error
    near = SharedMemoryConnector(
        config.name,
        compatibility,
        place,
        pool_in(memory.buffer, place),
        links.wake,
        faults=Faults(config.faults).of_transfers(),
        patience=config.transfer_seconds,
    )
    return near if config.transfer == "shared_memory" else ParentConnector(near, links.pull)


def size_pool(config: EngineConfig, model: ModelConfig, element_size: int) -> tuple[int, int]:
    """How many blocks fit into `kv_memory`, and the longest context: (num_blocks, max_model_len).

    Raises SettingError if not even one block fits, or the asked context does not.
    """
    if config.block_size < 1:
        raise SettingError(f"--block-size must be at least 1, not {config.block_size}")
    block_bytes = bytes_per_block(config, model, element_size)
    num_blocks = config.kv_memory // block_bytes
    if num_blocks < 1:
        raise SettingError(
            f"--kv-memory {config.kv_memory:,} bytes holds no block of {config.block_size} tokens, "
            f"which takes {block_bytes:,} bytes"
        )
    slots, longest = num_blocks * config.block_size, model.max_position_embeddings
    if slots < 2:
        raise SettingError(f"--kv-memory {config.kv_memory:,} bytes holds one token; a prompt and an answer need two")
    if config.max_model_len is None:
        return num_blocks, min(longest, slots)
    if not 2 <= config.max_model_len <= longest:
        raise SettingError(f"--max-model-len must be from 2 to {longest}, the model's own, not {config.max_model_len}")
    if config.max_model_len > slots:
        raise SettingError(
            f"--max-model-len {config.max_model_len} does not fit: --kv-memory {config.kv_memory:,} bytes "
            f"holds {slots} tokens"
        )
    return num_blocks, config.max_model_len


def size_swap_space(config: EngineConfig, model: ModelConfig, element_size: int) -> int:
    """How many blocks of host memory `swap_space` holds, 0 without one.

    Raises SettingError if it is less than a block, or is needed to preempt by swap and is not there.
    """
    block_bytes = bytes_per_block(config, model, element_size)
    if config.swap_space == 0:
        if config.control.preempt == "swap":
            raise SettingError(f"--preempt swap needs --swap-space of at least one block, {block_bytes:,} bytes")
        return 0
    if config.swap_space < block_bytes:
        raise SettingError(
            f"--swap-space must be 0, or hold a block of {config.block_size} tokens, which takes {block_bytes:,} "
            f"bytes, not {config.swap_space:,} bytes"
        )
    return config.swap_space // block_bytes


def check_transfer(config: EngineConfig, device: torch.device) -> None:
    """Raise SettingError if KV cannot be handed over so, or not from this device."""
    allowed = get_args(Transport)
    if config.transfer not in allowed:
        raise SettingError(f"transfer must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {config.transfer!r}")
    if config.transfer != "none" and device.type != "cpu":
        raise SettingError(
            f"transfer {config.transfer} hands over KV that lies in the memory of a CPU: --device must be cpu, not "
            f"{device}, or each engine must serve alone (transfer none)"
        )
    if config.transfer != "none" and not hasattr(os, "memfd_create"):
        raise SettingError(f"transfer {config.transfer} needs Linux, whose processes can map each other's memory")
    if config.transfer != "none":
        try:
            os.close(create_memory("trial"))
        except OSError as error:
            raise SettingError(
                f"transfer {config.transfer} needs memory that others can map (memfd_create): {error.strerror}"
            ) from error
    for name, value in (("lease_seconds", config.lease_seconds), ("transfer_seconds", config.transfer_seconds)):
        if not value > 0:
            raise SettingError(f"{name} must be above 0, not {value:g}")
    if config.threads is not None and config.threads < 1:
        raise SettingError(f"threads must be at least 1, not {config.threads}")


def bytes_per_block(config: EngineConfig, model: ModelConfig, element_size: int) -> int:
    """The KV of one block, over all layers."""
    return config.block_size * model.kv_bytes_per_token(element_size)


def check_memory(kv_memory: int, swap_space: int, device: torch.device) -> None:
    """Raise SettingError if the device or the host has less memory than that: Linux would grant it, and kill later."""
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host
    if kv_memory > total:
        raise SettingError(f"--kv-memory {kv_memory:,} bytes is more than the {total:,} bytes of {device}")
    left = host - kv_memory if device.type == "cpu" else host
    if swap_space > left:
        beside = f", with --kv-memory {kv_memory:,} bytes taken" if device.type == "cpu" else ""
        raise SettingError(
            f"--swap-space must be from 0 to the {left:,} bytes of this machine's memory{beside}, not {swap_space:,}"
        )


def choose_device(name: str) -> torch.device:
    """The device `name`; `auto` is a GPU if torch sees one. Raises SettingError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name in ("cpu", "cuda"):  # another GPU than the current one would have to be made so in every thread
        if name != "cpu" and not torch.cuda.is_available():
            raise SettingError(f"--device {name}: this torch sees no GPU; it must be auto or cpu")
        return torch.device(name)
    raise SettingError(f"--device must be auto, cpu or cuda, not {name!r}")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype `name`; `auto` is bfloat16 where the hardware multiplies it, else float32. Raises SettingError."""
    if name == "auto":
        return torch.bfloat16 if _has_bfloat16(device) else torch.float32
    if name not in DTYPES:
        raise SettingError(f"--dtype must be auto, bfloat16, float16 or float32, not {name!r}")
    return DTYPES[name]


def check_quantize(quantize: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise SettingError unless matrices can be quantized so, and multiplied, on this device."""
    allowed = get_args(Quantize)
    if quantize not in allowed:
        raise SettingError(f"--quantize must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {quantize!r}")
    if quantize == "none":
        return
    if device.type != "cpu":
        raise SettingError(f"--quantize {quantize} runs on a CPU alone: --device must be cpu, not {device}")
    if dtype not in cpu_panels.KINDS:
        raise SettingError(f"--quantize {quantize} needs --dtype auto, bfloat16 or float32, not float16")
    missing = cpu_quantized_tile.missing_features()
    if missing:
        raise SettingError(
            f"--quantize {quantize} needs a processor with AVX512-VNNI, and this one lacks {', '.join(missing)}: "
            "it must be none"
        )


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    try:
        with CPUINFO.open(encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(flags.split()))


def warm_up(model: str) -> None:
    """Build a small engine once, so that what compiles at a first start is compiled and kept."""
    try:
        core = build_core(EngineConfig(model=model, kv_memory=16 * 1024 * 1024))
    except SettingError as error:
        raise ModelError(str(error)) from error
    del core
