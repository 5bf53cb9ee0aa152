"""An engine is built as it was asked for, or the flag that cannot be is named."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine.build import (
    SettingError,
    build_core,
    check_quantize,
    check_transfer,
    choose_device,
    choose_dtype,
    size_pool,
    size_swap_space,
)
from engine.config import EngineConfig
from engine.core import ControlError
from engine.cpu_decoder import load_decoder
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.loading.weights import Weights
from engine.model import Decoder
from engine.protocol import Control
from engine.runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.transfer.parent import ParentConnector
from engine.transfer.pool_memory import PoolMemory, own_host, read_blocks
from engine.transfer.shared_memory import SharedMemoryConnector
from kernels import cpu_float_tile, thread_pool

TINY = EngineConfig(model="tiny", dtype="float32", device="cpu", kv_memory=1 << 20)
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # keys and values, layers, KV heads, head_dim, float32
BLOCK_BYTES = 16 * TOKEN_BYTES
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def sized(**changes: Any) -> tuple[int, int]:
    return size_pool(replace(TINY, **changes), resolve_model("tiny").config, 4)


def test_the_pool_is_what_fits_and_the_context_what_model_and_pool_allow() -> None:
    assert sized() == ((1 << 20) // (16 * TOKEN_BYTES), 2048)
    assert sized(kv_memory=100 * 32 * TOKEN_BYTES + 5, block_size=32) == (100, 3200)
    assert sized(kv_memory=1 << 24) == (2048, 4096)  # the model's own limit
    assert sized(kv_memory=1 << 24, max_model_len=300) == (2048, 300)
    assert sized(kv_memory=16 * TOKEN_BYTES) == (1, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_memory": 16 * TOKEN_BYTES - 1}, r"--kv-memory 8,191 bytes holds no block of 16 tokens.* 8,192 bytes"),
        ({"kv_memory": TOKEN_BYTES, "block_size": 1}, "bytes holds one token; a prompt and an answer need two"),
        ({"max_model_len": 4097}, "--max-model-len must be from 2 to 4096, the model's own, not 4097"),
        ({"max_model_len": 0}, "--max-model-len must be from 2"),
        ({"max_model_len": 2049}, "--max-model-len 2049 does not fit: .* holds 2048 tokens"),
        ({"block_size": 0}, "--block-size must be at least 1"),
    ],
)
def test_sizes_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        sized(**changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "gpt5"}, ModelError, "unknown model 'gpt5'"),
        ({"dtype": "int8"}, SettingError, "--dtype must be auto, bfloat16, float16 or float32, not 'int8'"),
        ({"quantize": "int4"}, SettingError, "--quantize must be none, int8 or q4, not 'int4'"),
        (
            {"quantize": "q4", "dtype": "float16"},
            SettingError,
            "--quantize q4 needs --dtype auto, bfloat16 or float32, not float16",
        ),
        ({"device": "tpu"}, SettingError, "--device must be auto, cpu or cuda, not 'tpu'"),
        ({"device": "cuda:1"}, SettingError, "--device must be auto, cpu or cuda, not 'cuda:1'"),
        ({"kv_memory": 1 << 50}, SettingError, "--kv-memory 1,125,899,906,842,624 bytes is more than the .* of cpu"),
        (
            {"swap_space": MEMORY - (1 << 20) + 1},
            SettingError,
            f"--swap-space must be from 0 to the {MEMORY - (1 << 20):,} bytes of .* --kv-memory 1,048,576 bytes taken, "
            f"not {MEMORY - (1 << 20) + 1:,}",
        ),
        (
            {"swap_space": BLOCK_BYTES - 1},
            SettingError,
            "--swap-space must be 0, or hold a block of 16 tokens, which takes 8,192 bytes, not 8,191",
        ),
        (
            {"control": Control(preempt="swap")},
            SettingError,
            "--preempt swap needs --swap-space of at least one block, 8,192 bytes",
        ),
        ({"transfer": "tcp"}, SettingError, "transfer must be none, shared_memory or parent, not 'tcp'"),
        ({"lease_seconds": 0.0}, SettingError, "lease_seconds must be above 0, not 0"),
        ({"transfer_seconds": math.nan}, SettingError, "transfer_seconds must be above 0, not nan"),
        ({"threads": 0}, SettingError, "threads must be at least 1, not 0"),
        (
            {"transfer": "parent", "control": Control(batching="static")},
            ControlError,
            "batching must be 'continuous' on an engine that hands over KV, not 'static'",
        ),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_core(replace(TINY, **changes))


def test_swap_space_is_counted_in_blocks() -> None:
    model = resolve_model("tiny").config
    assert [size_swap_space(replace(TINY, swap_space=size), model, 4) for size in (0, BLOCK_BYTES, 1 << 20)] == [
        0,
        1,
        128,
    ]
    core = build_core(replace(TINY, swap_space=10 * BLOCK_BYTES + 1, control=Control(preempt="swap")))
    assert core.info.num_host_blocks == 10
    assert core.info.num_blocks == 128


def test_cuda_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(SettingError, match="--device cuda: this torch sees no GPU"):
        choose_device("cuda")


def test_a_pool_that_others_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(TINY, transfer="shared_memory")
    with pytest.raises(
        SettingError, match=r"transfer shared_memory .* CPU: --device must be cpu, not cuda, or .* \(transfer none\)"
    ):
        check_transfer(config, torch.device("cuda"))
    check_transfer(config, torch.device("cpu"))
    check_transfer(TINY, torch.device("cuda"))

    def forbidden(name: str, flags: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    with pytest.raises(SettingError, match=r"memory that others can map \(memfd_create\): Operation not permitted"):
        check_transfer(config, torch.device("cpu"))
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(SettingError, match="transfer shared_memory needs Linux"):
        check_transfer(config, torch.device("cpu"))


def test_an_engine_that_hands_over_has_its_pool_where_others_find_it() -> None:
    assert build_core(TINY).connector is None
    core = build_core(replace(TINY, transfer="shared_memory", name="prefill-0", dtype="float32"))
    assert isinstance(core.connector, SharedMemoryConnector)
    assert core.connector.compatibility.told.startswith("tiny, float32, blocks of 16, ")
    assert core.connector.place.host == own_host()
    assert core.connector.export("a", [3], 1, deadline=0.0).engine == "prefill-0"
    runner = cast(ModelRunner, core.runner)
    runner.blocks[3] = 2.5
    read = read_blocks(core.connector.place, [3, 4])
    assert (read.shape, read.dtype) == ((2, *runner.blocks.shape[1:]), np.uint32)
    assert (read.view(np.float32)[0] == 2.5).all()
    assert not read[1].any()


def test_an_engine_whose_pool_other_processes_cannot_open_says_so_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own process can: the path is of the one that opens it."""
    monkeypatch.setattr(PoolMemory, "path", property(lambda memory: f"/proc/self/fd/{memory._fd}"))
    with pytest.raises(SettingError, match=r"transfer parent: other processes cannot open /proc/self/fd/.*serve alone"):
        build_core(replace(TINY, transfer="parent"))


def test_an_engine_may_be_told_which_host_it_is_on() -> None:
    core = build_core(replace(TINY, transfer="parent", host="node-7"))
    assert isinstance(core.connector, ParentConnector)
    assert core.connector.export("a", [0], 16, 1.0).place.host == "node-7"


def test_quantized_weights_are_refused_where_they_cannot_be_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="--quantize int8 runs on a CPU alone: --device must be cpu, not cuda"):
        check_quantize("int8", torch.bfloat16, torch.device("cuda"))
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: {"avx512f": True, "avx512bw": True})
    with pytest.raises(
        SettingError, match=r"--quantize q4 needs .* AVX512-VNNI, and this one lacks avx512vnni: it must"
    ):
        check_quantize("q4", torch.bfloat16, torch.device("cpu"))
    check_quantize("none", torch.float16, torch.device("cuda"))


@pytest.mark.parametrize(("flags", "dtype"), [("fma avx512_bf16", torch.bfloat16), ("fma", torch.float32)])
def test_auto_dtype_follows_the_hardware(
    flags: str, dtype: torch.dtype, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : {flags}\n")
    monkeypatch.setattr("engine.build.CPUINFO", cpuinfo)
    assert choose_dtype("auto", torch.device("cpu")) == dtype
    assert choose_dtype("float16", torch.device("cpu")) == torch.float16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_short_context_is_served(dtype: str) -> None:
    core = build_core(replace(TINY, dtype=dtype, max_model_len=3))
    core.add("a", [1, 2], SamplingParams(max_tokens=1))
    outputs, _ = core.step()
    assert [output.finished is not None for output in outputs] == [True]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_a_built_engine_tells_what_it_is_and_serves(dtype: str) -> None:
    control = Control(max_num_seqs=3)
    core = build_core(replace(TINY, dtype=dtype, control=control, check_invariants=True))
    assert core.info.model == "tiny"
    assert core.info.dtype == (str(choose_dtype(dtype, torch.device("cpu"))).removeprefix("torch."))
    assert core.info.device == "cpu"
    assert core.info.kv_bytes_per_token == (TOKEN_BYTES if core.info.dtype == "float32" else TOKEN_BYTES // 2)
    assert core.control == control
    for i in range(5):
        core.add(str(i), range(10 * i, 10 * i + 5), SamplingParams(max_tokens=4, seed=i, ignore_eos=True))
    tokens = 0
    while core.has_work:
        outputs, _ = core.step()
        tokens += sum(output.token_id is not None for output in outputs)
    assert tokens == 20


@pytest.mark.skipif(not cpu_float_tile.multiplies(torch.float32), reason="the file's own weights are used")
def test_the_file_of_weights_is_let_go_of() -> None:
    core = build_core(TINY)
    assert "model.safetensors" not in Path("/proc/self/maps").read_text()
    del core


def test_without_threads_to_borrow_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(thread_pool, "_gomp_parallel", lambda: None)
    resolved = resolve_model("tiny")
    with Weights(resolved.folder, torch.float32, torch.device("cpu")) as weights:
        assert isinstance(load_decoder(resolved.config, weights, 16), Decoder)
