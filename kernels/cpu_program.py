"""A step as one region of the thread pool: stages one after another, each shared by the threads that are there.

Waking threads costs tens of microseconds and a step has some 270 stages, so the threads are woken once a step. A stage
is over when no piece of it is left and nobody works at one; whoever finds that goes on to the next. Unlike at a
barrier, nobody waits for a thread that the system has not let run: on a busy machine each of 270 barriers would cost
a turn of the scheduler. Who waits for a piece in work spins for microseconds, then sleeps, which leaves its core to
the one it waits for.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from kernels import thread_pool
from kernels.compile_cache import compile_worker
from kernels.cpu_call import integers, load_int64, offsets
from kernels.cpu_vectors import I32, I64

CLOCK_MONOTONIC = 1
SYSCALL_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)
FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 128, 129
SPINS = 1000  # some 26 microseconds here: longer than most waits, shorter than what a sleep costs twice


class Run(ctypes.Structure):
    """One run of a program: `stages` int64 [num_stages, 2] of worker and call, `times` int64 [num_stages + 1, 2].

    `stage` is the one being worked at, `sleepers` how many threads sleep until it ends, `active` int64 [num_stages]
    how many are at work at each. The first two have a line of the cache of their own.
    """

    _fields_ = (
        *integers("stage", "sleepers"),
        ("apart", ctypes.c_int64 * 6),
        *integers("num_stages", "stages", "active", "times", "clock", "syscall"),
    )


class Program:
    """Stages to be run together; addresses of workers and of their calls, which must outlive it.

    A worker takes tickets from its call until none is left, and may be called again after that.
    """

    def __init__(self, stages: Sequence[tuple[int, int]]) -> None:
        self.stages = np.array(stages, np.int64).reshape(-1, 2)
        self._active = np.zeros(len(stages), np.int64)
        self._times = np.zeros((len(stages) + 1, 2), np.int64)
        self._run = Run(
            num_stages=len(stages),
            stages=self.stages.ctypes.data,
            active=self._active.ctypes.data,
            times=self._times.ctypes.data,
            clock=_address("clock_gettime"),
            syscall=_address("syscall") if SYSCALL_FUTEX else 0,
        )

    def run(self) -> npt.NDArray[np.float64]:
        """Run all stages on all threads; the seconds that each took, float64 [num_stages]."""
        self._run.stage, self._run.sleepers = 0, 0
        self._active[:] = 0
        _read_clock(self._times)
        thread_pool.run(_program_worker(), self._run)
        return np.diff(self._times[:, 0]) + np.diff(self._times[:, 1]) * 1e-9


@cache
def _address(function: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), function), ctypes.c_void_p).value or 0


def _read_clock(times: npt.NDArray[np.int64]) -> None:
    """Write the time into the first row, as the threads write it into the others."""
    _clock_gettime()(CLOCK_MONOTONIC, times.ctypes.data)


@cache
def _clock_gettime() -> Any:
    function = ctypes.CDLL(None).clock_gettime
    function.argtypes = [ctypes.c_int, ctypes.c_void_p]
    return function


@intrinsic
def _call_worker(typingctx: Any, worker: Any, call: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.VoidType(), [I64]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _store_time(typingctx: Any, clock: Any, time: Any) -> Any:
    """clock_gettime(CLOCK_MONOTONIC, time)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(I32, [I32, I64]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), [ir.Constant(I32, CLOCK_MONOTONIC), arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _store(typingctx: Any, address: Any, value: Any) -> Any:
    """Write the int64 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _futex(typingctx: Any, syscall: Any, address: Any, operation: Any, value: Any) -> Any:
    """syscall(SYS_futex, address, operation, value, no timeout)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        syscall, address, operation, value = arguments
        function = ir.FunctionType(I64, [I64] * 5).as_pointer()
        nothing, number = ir.Constant(I64, 0), ir.Constant(I64, SYSCALL_FUTEX)
        builder.call(builder.inttoptr(syscall, function), [number, address, operation, value, nothing])
        return context.get_dummy_value()

    return types.void(*(types.int64 for _ in range(4))), generate


@intrinsic
def _add(typingctx: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 at an address, seen by all threads in one order; returns what it then is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        before = builder.atomic_rmw("add", builder.inttoptr(arguments[0], I64.as_pointer()), arguments[1], "seq_cst")
        return builder.add(before, arguments[1])

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _load(typingctx: Any, address: Any) -> Any:
    """The int64 at an address, as other threads wrote it last."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def _swap(typingctx: Any, address: Any, old: Any, new: Any) -> Any:
    """Whether the int64 at an address was `old`, in which case it is now `new`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], I64.as_pointer())
        pair = builder.cmpxchg(place, arguments[1], arguments[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def _pause(typingctx: Any) -> Any:
    """Let the core rest for some tens of cycles, where it has an instruction for that."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            function = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@cache
def _program_worker() -> Any:
    at = offsets(Run)
    at_stage, at_sleepers, at_count, at_stages, at_active, at_times, at_clock, at_syscall = (
        at[x] for x in ("stage", "sleepers", "num_stages", "stages", "active", "times", "clock", "syscall")
    )

    def program(run: int) -> None:
        own_time = np.zeros(2, np.int64)
        count, stages, active = load_int64(run + at_count), load_int64(run + at_stages), load_int64(run + at_active)
        times, clock, syscall = load_int64(run + at_times), load_int64(run + at_clock), load_int64(run + at_syscall)
        stage = _load(run + at_stage)
        while stage < count:
            _add(active + 8 * stage, 1)
            _call_worker(load_int64(stages + 16 * stage), load_int64(stages + 16 * stage + 8))
            # No ticket is left. If nobody else is at work, the stage is over. The time is read before others go on, and
            # written by the one who lets them: a late one that finds the stage over too would write a later time.
            if _add(active + 8 * stage, -1) == 0 and _load(run + at_stage) == stage:
                _store_time(clock, own_time.ctypes.data)
                if _swap(run + at_stage, stage, stage + 1):
                    _store(times + 16 * (stage + 1), own_time[0])
                    _store(times + 16 * (stage + 1) + 8, own_time[1])
                    if _load(run + at_sleepers) > 0 and syscall:
                        _futex(syscall, run + at_stage, FUTEX_WAKE_PRIVATE, 1 << 30)
            spins = 0
            while _load(run + at_stage) == stage:
                spins += 1
                if spins < SPINS or not syscall:
                    _pause()
                else:
                    _add(run + at_sleepers, 1)
                    # The kernel compares the lower half of the counter once more, and sleeps only if it is unchanged.
                    if _load(run + at_stage) == stage:
                        _futex(syscall, run + at_stage, FUTEX_WAIT_PRIVATE, stage)
                    _add(run + at_sleepers, -1)
                    spins = 0
            stage = _load(run + at_stage)

    return compile_worker(program)
