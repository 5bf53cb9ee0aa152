"""How compiled workers are told what to do: a structure of numbers at an address, and pieces drawn from it by ticket.

A worker is a C function of that one address, so that any thread pool can run it. The first field of a structure whose
work is shared is its `ticket`: each thread takes pieces until none is left.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, register_jitable

from kernels.cpu_vectors import F32, I32, I64

PIECES = 64  # of a step's rows, where there are as many: enough to share evenly


def integers(*names: str) -> tuple[tuple[str, Any], ...]:
    """Fields of a structure, all int64."""
    return tuple((name, ctypes.c_int64) for name in names)


def offsets(structure: type[ctypes.Structure]) -> dict[str, int]:
    """Where each field of a structure lies, in bytes."""
    return {field[0]: getattr(structure, field[0]).offset for field in structure._fields_}


@register_jitable
def take_rows(call: int, rows: int) -> tuple[int, int]:
    """The next piece of `rows` rows, first and end; none is left where these are equal."""
    pieces = min(rows, PIECES)
    piece = take_ticket(call)
    if piece >= pieces:
        return rows, rows
    return rows * piece // pieces, rows * (piece + 1) // pieces


@intrinsic
def take_ticket(typingctx: Any, address: Any) -> Any:
    """Atomically add one to the int64 at an address, and return what it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(I64, 1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def load_int64(typingctx: Any, address: Any) -> Any:
    """The int64 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], I64.as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def load_float64(typingctx: Any, address: Any) -> Any:
    """The float64 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.DoubleType().as_pointer()))

    return types.float64(types.int64), generate


@intrinsic
def load_int32(typingctx: Any, address: Any) -> Any:
    """The int32 at an address, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow = builder.load(builder.inttoptr(arguments[0], I32.as_pointer()))
        return builder.sext(narrow, I64)

    return types.int64(types.int64), generate


@intrinsic
def load_float32(typingctx: Any, address: Any) -> Any:
    """The float32 at an address, as float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow = builder.load(builder.inttoptr(arguments[0], F32.as_pointer()))
        return builder.fpext(narrow, ir.DoubleType())

    return types.float64(types.int64), generate
