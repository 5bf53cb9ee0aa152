"""How Triton kernels are launched: on a device, or written down instead.

On the meta device tensors have shapes and no data. Code that runs there inside `recording` goes through every decision
it would make for the given target, and what it would launch is kept: so the list of kernels to compile ahead of time
comes from the engine's own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True)
class Target:
    """What the choice of a launch depends on. `arch`: 80, 90 (CUDA), "gfx942" (HIP), 0 (Triton's interpreter)."""

    backend: str
    arch: int | str
    processors: int  # multiprocessors, compute units

    @property
    def warp_size(self) -> int:
        return 64 if self.backend == "hip" else 32

    @property
    def hopper(self) -> bool:
        """Whether this is a data centre's card from Hopper on: with larger shared memory than others, and wgmma."""
        return self.backend == "cuda" and isinstance(self.arch, int) and 90 <= self.arch < 120

    @property
    def converts_fp8(self) -> bool:
        """Whether e4m3 is widened by an instruction; elsewhere it takes some integer arithmetic."""
        return self.backend == "cuda" and isinstance(self.arch, int) and self.arch >= 89


A100 = Target("cuda", 80, 108)
H200 = Target("cuda", 90, 132)
MI300 = Target("hip", "gfx942", 304)
INTERPRETER = Target("cpu", 0, 1)


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch of a kernel: `constants` are its constexpr arguments by name."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    warps: int
    stages: int


@dataclass(frozen=True)
class _Recorder:
    target: Target
    launches: list[Launch]


_recorder: ContextVar[_Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def recording(target: Target) -> Iterator[list[Launch]]:
    """Within, launches go into the list that this gives, instead of to a device; all devices are `target`."""
    launches: list[Launch] = []
    token = _recorder.set(_Recorder(target, launches))
    try:
        yield launches
    finally:
        _recorder.reset(token)


def target_of(device: torch.device) -> Target:
    """What a device is; while recording, what is recorded for."""
    recorder = _recorder.get()
    return recorder.target if recorder is not None else _device_target(device)


@cache
def _device_target(device: torch.device) -> Target:
    if device.type != "cuda":
        return INTERPRETER
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return Target("hip", properties.gcnArchName.split(":")[0], properties.multi_processor_count)
    return Target("cuda", properties.major * 10 + properties.minor, properties.multi_processor_count)


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int = 4, stages: int = 2, **constants: Any
) -> None:
    """Launch `kernel`, or write it down while recording. A grid with nothing in it launches nothing."""
    if 0 in grid:
        return
    recorder = _recorder.get()
    if recorder is not None:
        recorder.launches.append(Launch(kernel, grid, arguments, constants, warps, stages))
    else:
        kernel[grid](*arguments, num_warps=warps, num_stages=stages, **constants)
