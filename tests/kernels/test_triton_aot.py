"""What the engine would launch on GPUs that are not here compiles for them, and fits their registers."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be compiled", allow_module_level=True)

from kernels import aot
from kernels.launch import A100, H200, MI300

# Every pull request compiles these; `make nightly` all that `aot.SHAPES` names.
SHORT = {
    "h200": ["smollm2", "llama-8b", "llama-8b-fp8", "gemma-256-capped"],
    "a100": ["llama-8b"],
    "mi300": ["llama-8b"],
}
CHOSEN = {name: list(aot.SHAPES) for name in aot.TARGETS} if os.environ.get("PAGED_TOP_LONG") else SHORT


def wanted():
    return [
        pytest.param(aot.TARGETS[name], one, id=f"{name} {one}")
        for name, shapes in CHOSEN.items()
        for one in aot.specializations(aot.TARGETS[name], [aot.SHAPES[shape] for shape in shapes])
    ]


@pytest.mark.parametrize(("target", "specialization"), wanted())
def test_compiles_without_spills(target, specialization):
    report = aot.compile_one(specialization, target)
    assert report.spills == 0
    assert report.registers <= (512 if target.backend == "hip" else 255)
    if target.backend == "hip":
        assert report.shared <= 64 * 1024
    elif target == A100:
        assert report.shared <= 99 * 1024  # what smaller cards have, which get the same tiles
    if target.backend == "cuda":
        # of decode more than one, whose bytes are on their way while another is at its softmax
        assert report.programs >= (2 if "decode" in specialization.kernel else 1)


def keys(shape, target=H200, steps=None):
    launches = aot.model_launches(target, shape, steps or aot.STEPS)
    return {aot.specialize(launch, target) for launch in launches}


@pytest.mark.parametrize("target", [A100, H200, MI300], ids=str)
def test_what_varies_between_steps_specialises_nothing(target):
    """Or serving would stop in the middle to compile: windows and splits of 1, tables of 1 or 16 blocks."""
    shape = aot.SHAPES["llama-8b"]
    expected = keys(shape, target)
    steps = [[(context, queries)] for context in (1, 16, 17, 256, 5000, 65536) for queries in (1, 3, 16, 200)]
    steps = [[(max(context, queries), queries)] for [(context, queries)] in steps]
    steps += [[(300, 1)] * count for count in (2, 16, 17, 200)]
    assert keys(shape, target, steps) <= expected


def test_windows_of_any_length_share_their_kernels():
    found = [keys(aot.Shape(32, 8, 128, window=window)) for window in (1, 2, 16, 4096)]
    assert found[0] <= found[1] <= found[2] <= found[3]  # short windows need no splits
    assert found[0] - keys(aot.Shape(32, 8, 128))


def test_every_way_to_launch_is_among_the_steps():
    names = {one.kernel.split(":")[1] for one in keys(aot.SHAPES["llama-8b"])}
    assert names == {
        "decode_kernel",
        "reduce_kernel",
        "prefill_kernel",
        "write_kernel",
        "rotate_and_write_kernel",
        "add_norm_kernel",
        "silu_mul_kernel",
    }
    splits = {dict(one.constants).get(32) for one in keys(aot.SHAPES["llama-8b"]) if "decode" in one.kernel}
    assert len(splits) == 2


def test_integers_that_are_one_become_constants_and_pointers_are_aligned():
    shape = aot.Shape(3, 3, 64, torch.float16)
    [decode] = [one for one in keys(shape, steps=[[(20, 1)]]) if "decode" in one.kernel]
    names = [name for name, _ in decode.signature]
    kinds = dict(decode.signature)
    assert kinds["query_ptr"] == "*fp16"
    assert kinds["window"] == kinds["splits"] == kinds["table_row"] == "i32"
    divisible = {names[i] for i, letters in decode.assumed if "D" in letters}
    assert {"query_ptr", "keys_ptr", "query_row", "key_block"} <= divisible
    assert not divisible & {"window", "splits", "table_row"}
    assert dict(decode.constants)[names.index("GROUP")] == 1


def test_what_an_amd_gpu_is_told_of_sizes():
    """Its compiler reads tensors below 2 GB with other instructions; an engine's caches are larger."""
    [decode] = [one for one in keys(aot.SHAPES["llama-8b"], MI300, [[(20, 1)]]) if "decode_kernel" in one.kernel]
    names = [name for name, _ in decode.signature]
    small = {names[i] for i, letters in decode.assumed if "S" in letters}
    assert {"query_ptr", "out_ptr", "partial_ptr"} <= small
    assert not small & {"keys_ptr", "values_ptr"}
