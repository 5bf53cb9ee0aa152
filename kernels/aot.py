"""Every kernel the engine can launch, compiled ahead of time for GPUs that are not there, and what assemblers tell.

`python -m kernels.aot [--targets h200,a100,mi300] [--shapes NAME,...]` prints a table. What is compiled comes from the
functions that launch, run on tensors without data, and is specialised by Triton's own rules (integers that are 1 or
divisible by 16, aligned pointers, on AMD's tensors below 2 GB), so that it is what a GPU would be given.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention import AttentionMetadata, paged_attention, rotate_and_write, write_kv
from kernels.elementwise import add_norm, silu_mul
from kernels.fp8 import FP8
from kernels.launch import A100, H200, MI300, Launch, Target, recording

TARGETS = {"a100": A100, "h200": H200, "mi300": MI300}
# What one multiprocessor holds, for the number of programs that fit: registers, threads, bytes of shared memory.
PROCESSOR = {80: (65536, 2048, 164 * 1024), 90: (65536, 2048, 228 * 1024)}
META = torch.device("meta")


@dataclass(frozen=True)
class Shape:
    """A model's attention, as far as kernels are specialised for it."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None  # None: the same
    hidden: int = 4096
    inner: int = 14336
    block_size: int = 16
    window: int | None = None
    soft_cap: float | None = None
    qk_norm: bool = False


SHAPES = {
    "smollm2": Shape(9, 3, 64, hidden=576, inner=1536),
    "smollm2-fp32": Shape(9, 3, 64, torch.float32, hidden=576, inner=1536),
    "llama-8b": Shape(32, 8, 128),
    "llama-8b-fp16": Shape(32, 8, 128, torch.float16),
    "llama-8b-fp8": Shape(32, 8, 128, cache_dtype=FP8),
    "mistral-window": Shape(32, 8, 128, window=4096),
    "qwen3": Shape(32, 8, 128, qk_norm=True),
    "phi-80": Shape(32, 32, 80, hidden=2560, inner=10240),
    "phi3-96": Shape(32, 32, 96, hidden=3072, inner=8192),
    "gemma-256-capped": Shape(8, 4, 256, hidden=2304, inner=9216, window=4096, soft_cap=50.0),
    "gemma-256-fp8": Shape(8, 4, 256, cache_dtype=FP8, hidden=2304, inner=9216, soft_cap=50.0),
    "one-kv-head": Shape(16, 1, 128),
    "fp32-128": Shape(32, 8, 128, torch.float32),
    "fp32-fp8": Shape(32, 8, 128, torch.float32, FP8),
    "fp16-fp8": Shape(32, 8, 128, torch.float16, FP8),
    "fp32-256": Shape(8, 4, 256, torch.float32, hidden=2304, inner=9216),
}
# (context, queries) of every sequence of a step, such that each way to launch is taken: splits and none,
# chunks of few queries and of many, both kinds together.
STEPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((32768, 1),),
    ((16, 1), (1, 1)),
    ((600, 2),),
    ((4096, 512), (900, 1)),
)


@dataclass(frozen=True)
class Specialization:
    """One kernel as Triton compiles it: the same for all launches that share it."""

    kernel: str  # module:function
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[int, Any], ...]  # by the argument's place
    assumed: tuple[tuple[int, str], ...]  # by place, in Triton's letters: divisible by 16, a tensor below 2 GB
    warps: int
    stages: int

    def __str__(self) -> str:
        names = [name for name, _ in self.signature]
        constants = " ".join(f"{names[i]}={value}" for i, value in self.constants if names[i].isupper())
        pointers = "/".join(dict.fromkeys(kind[1:] for _, kind in self.signature if kind.startswith("*")))
        return f"{self.kernel.split(':')[1]} {pointers} {constants} warps={self.warps} stages={self.stages}"


@dataclass(frozen=True)
class Report:
    """What an assembler tells of a kernel; spills in bytes of a thread's stack (CUDA) or registers (HIP)."""

    registers: int
    spills: int
    shared: int
    programs: int | None  # that one multiprocessor holds at a time, where its size is known


def model_launches(target: Target, shape: Shape, steps: Sequence[Sequence[tuple[int, int]]] = STEPS) -> list[Launch]:
    """What a decoder of this shape launches on `target` in these steps: (context, queries) of each sequence."""
    cache_dtype = shape.cache_dtype or shape.dtype
    blocks = (1 << 22, shape.kv_heads, shape.block_size, shape.head_dim)
    key_cache, value_cache = (torch.empty(blocks, dtype=cache_dtype, device=META) for _ in range(2))
    norm = None
    if shape.qk_norm:
        norm = torch.empty(shape.heads + shape.kv_heads, shape.head_dim, dtype=shape.dtype, device=META)
    cos = torch.empty(4096, shape.head_dim, dtype=shape.dtype, device=META)
    weight = torch.empty(shape.hidden, device=META)
    with recording(target) as launches:
        for step in steps:
            metadata = step_metadata(step, shape.block_size)
            tokens = metadata.num_tokens
            qkv = torch.empty(tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim, dtype=shape.dtype, device=META)
            positions = torch.empty(tokens, dtype=torch.int64, device=META)
            query = rotate_and_write(
                qkv, norm, 1e-5, cos, cos, positions, key_cache, value_cache, metadata,
            )  # fmt: skip
            paged_attention(
                query, key_cache, value_cache, metadata, 1.0,
                sliding_window=shape.window, soft_cap=shape.soft_cap, backend="triton",
            )  # fmt: skip
            new = qkv[:, shape.heads : shape.heads + shape.kv_heads]
            write_kv(new, new, key_cache, value_cache, metadata, backend="triton")
            residual = torch.empty(tokens, shape.hidden, device=META)
            add_norm(residual, None, weight, 1e-5, shape.dtype, triton=True)
            add_norm(residual, residual.to(shape.dtype), weight, 1e-5, shape.dtype, triton=True)
            silu_mul(torch.empty(tokens, 2 * shape.inner, dtype=shape.dtype, device=META), triton=True)
    return launches


def step_metadata(step: Sequence[tuple[int, int]], block_size: int) -> AttentionMetadata:
    """A step without data, of sequences with these contexts and numbers of queries."""
    contexts, queries = (torch.tensor(numbers, dtype=torch.int32) for numbers in zip(*step, strict=True))
    starts = torch.zeros(len(step) + 1, dtype=torch.int32)
    starts[1:] = queries.cumsum(0)
    width = -(-max(context for context, _ in step) // block_size)
    return AttentionMetadata.build(
        torch.zeros(len(step), width, dtype=torch.int32),
        starts,
        contexts,
        torch.full((int(starts[-1]),), -1, dtype=torch.int64),
        device=META,
    )


def specialize(launch: Launch, target: Target) -> Specialization:
    """By Triton's own binder, as its just-in-time compiler would on `target`."""
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(_gpu(target))
    kernel = launch.kernel
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, kinds, _ = bind(*launch.arguments, **launch.constants)
    values = list(bound.values())
    return Specialization(
        kernel=f"{kernel.fn.__module__}:{kernel.fn.__name__}",
        signature=tuple((p.name, kind[0]) for p, kind in zip(kernel.params, kinds, strict=True)),
        constants=tuple((i, values[i]) for i, kind in enumerate(kinds) if kind[0] == "constexpr"),
        assumed=tuple((i, kind[1]) for i, kind in enumerate(kinds) if kind[0] != "constexpr" and kind[1]),
        warps=launch.warps,
        stages=launch.stages,
    )


def specializations(target: Target, shapes: Iterable[Shape]) -> list[Specialization]:
    """Every different kernel that these models need on `target`."""
    found: dict[Specialization, None] = {}
    for shape in shapes:
        found.update(dict.fromkeys(specialize(launch, target) for launch in model_launches(target, shape)))
    return list(found)


def compile_one(wanted: Specialization, target: Target) -> Report:
    """Compile to machine code and read the assembler's report. Raises what Triton raises if it cannot."""
    import triton
    from triton.compiler import ASTSource, make_backend

    backend = make_backend(_gpu(target))
    module, name = wanted.kernel.split(":")
    source = ASTSource(
        fn=getattr(importlib.import_module(module), name),
        signature=dict(wanted.signature),
        constexprs={(i,): value for i, value in wanted.constants},
        attrs={(i,): backend.parse_attr(letters) for i, letters in wanted.assumed},
    )
    options = {"num_warps": wanted.warps, "num_stages": wanted.stages}
    compiled = triton.compile(source, target=_gpu(target), options=options)
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        registers = _number(r"\.vgpr_count:\s+(\d+)", text)
        spills = _number(r"\.vgpr_spill_count:\s+(\d+)", text)
        return Report(registers, spills, compiled.metadata.shared, None)
    text = _resource_usage(compiled.asm["cubin"])
    registers, shared = _number(r"REG:(\d+)", text), compiled.metadata.shared
    spills = _number(r"STACK:(\d+)", text) + _number(r"LOCAL:(\d+)", text)
    assert isinstance(target.arch, int)
    return Report(registers, spills, shared, _fitting(target.arch, registers, 32 * wanted.warps, shared))


def _resource_usage(cubin: bytes) -> str:
    """What the assembler wrote into its result, told by the tool that comes with Triton."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        return subprocess.run(tool, check=True, capture_output=True, text=True).stdout


def _fitting(arch: int, registers: int, threads: int, shared: int) -> int | None:
    """Programs that fit into a multiprocessor; registers come in eights, and each program reserves a KiB."""
    if arch not in PROCESSOR:
        return None
    all_registers, all_threads, all_shared = PROCESSOR[arch]
    by_registers = all_registers // (-(-registers // 8) * 8 * threads)
    return min(by_registers, all_threads // threads, all_shared // (shared + 1024), 32)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the assembler's report has no {pattern!r}: {text[:500]!r}")
    return int(found[1])


def _gpu(target: Target) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(target.backend, target.arch, target.warp_size)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels.aot", description=__doc__)
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--shapes", default=",".join(SHAPES), help=f"of {', '.join(SHAPES)} (default: all)")
    arguments = parser.parse_args()
    for option, known in (("targets", TARGETS), ("shapes", SHAPES)):
        for name in getattr(arguments, option).split(","):
            if name not in known:
                parser.error(f"--{option}: {name!r} is none of {', '.join(known)}")
    print(f"{'target':<8}{'registers':>10}{'spills':>8}{'shared':>9}{'programs':>10}  kernel")
    for name in arguments.targets.split(","):
        target = TARGETS[name]
        for wanted in specializations(target, (SHAPES[shape] for shape in arguments.shapes.split(","))):
            report = compile_one(wanted, target)
            programs = "-" if report.programs is None else report.programs
            print(
                f"{name:<8}{report.registers:>10}{report.spills:>8}{report.shared:>9}{programs:>10}  {wanted}",
                flush=True,
            )


if __name__ == "__main__":
    main()
