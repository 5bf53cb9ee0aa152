"""A step as one region of the thread pool: stages one after another, each shared by all threads, a barrier between.

Waking threads costs tens of microseconds and a step has some 270 stages, so the threads are woken once a step. The
barrier is libgomp's own: it spins for as long as the environment says (see `engine.threads`), then sleeps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kernels import thread_pool
from kernels.compile_cache import compile_worker
from kernels.cpu_elementwise import offsets
from kernels.cpu_tile import I64, load_int64, take_ticket

CLOCK_MONOTONIC = 1


class Run(ctypes.Structure):
    """One run of a program: `stages` int64 [num_stages, 2] of worker and call, `times` int64 [num_stages + 1, 2]."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("ticket", "num_stages", "stages", "barrier", "clock", "times"))


class Program:
    """Stages to be run together; addresses of workers and of their calls, which must outlive it."""

    def __init__(self, stages: Sequence[tuple[int, int]]) -> None:
        self.stages = np.array(stages, np.int64).reshape(-1, 2)
        self._times = np.zeros((len(stages) + 1, 2), np.int64)
        self._run = Run(
            num_stages=len(stages),
            stages=self.stages.ctypes.data,
            clock=_clock_address(),
            times=self._times.ctypes.data,
        )

    def run(self) -> npt.NDArray[np.float64]:
        """Run all stages on all threads; the seconds that each took, float64 [num_stages]."""
        self._run.ticket, self._run.barrier = 0, thread_pool.barrier_address()
        thread_pool.run(_program_worker(), self._run)
        return np.diff(self._times[:, 0]) + np.diff(self._times[:, 1]) * 1e-9


@cache
def _clock_address() -> int:
    return ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0


@intrinsic
def _call_worker(typingctx: Any, worker: Any, call: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.VoidType(), [I64]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _wait(typingctx: Any, barrier: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.VoidType(), []).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), [])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _read_clock(typingctx: Any, clock: Any, time: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(32)
        function = ir.FunctionType(number, [number, I64]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), [ir.Constant(number, CLOCK_MONOTONIC), arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@cache
def _program_worker() -> Any:
    at = offsets(Run)
    at_count, at_stages, at_barrier, at_clock, at_times = (
        at[x] for x in ("num_stages", "stages", "barrier", "clock", "times")
    )

    def program(run: int) -> None:
        timekeeper = take_ticket(run) == 0
        count, stages, barrier = load_int64(run + at_count), load_int64(run + at_stages), load_int64(run + at_barrier)
        clock, times = load_int64(run + at_clock), load_int64(run + at_times)
        if timekeeper:
            _read_clock(clock, times)
        for i in range(count):
            _call_worker(load_int64(stages + 16 * i), load_int64(stages + 16 * i + 8))
            if barrier:
                _wait(barrier)
            if timekeeper:
                _read_clock(clock, times + 16 * (i + 1))

    return compile_worker(program)
