"""The head of a GGUF file: its fields, and each tensor's shape and type. No tensor is read.

Whatever lengths the head claims, no more is read, kept or passed over than the file holds.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from engine.loading.errors import ModelError

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST = 1 << 16  # items of an array that is kept; of longer ones, as vocabularies, only the length is
_MOST_FIELDS = 1 << 20


class SkippedArray(int):
    """An array that was passed over: how long it is."""


class TensorHead(NamedTuple):
    name: str
    elements: int
    kind: int  # its type, by ggml's number


class GGUFHead(NamedTuple):
    fields: dict[str, Any]
    tensors: list[TensorHead]


def read_gguf_head(path: Path) -> GGUFHead:
    """Raises ModelError for what is no GGUF file with a whole head."""
    try:
        with path.open("rb") as file:
            return _Reader(file).head()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, struct.error) as error:
        raise ModelError(f"{path} is not a GGUF file with a whole head: {error}") from error


class _Reader:
    """Reads from the beginning on. Raises ValueError or struct.error."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size

    def head(self) -> GGUFHead:
        if self._bytes(min(4, self._left)) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version, num_tensors, num_fields = self._unpack("IQQ")
        if version not in (2, 3) or max(num_tensors, num_fields) > _MOST_FIELDS:
            raise ValueError(f"version {version} with {num_tensors} tensors and {num_fields} fields")
        fields: dict[str, Any] = {}
        for _ in range(num_fields):
            key = self._string()
            (kind,) = self._unpack("I")
            fields[key] = self._value(kind)
        return GGUFHead(fields, [self._tensor() for _ in range(num_tensors)])

    def _tensor(self) -> TensorHead:
        name = self._string()
        (dimensions,) = self._unpack("I")
        if dimensions > 8:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        *sizes, kind, _offset = self._unpack(f"{dimensions}QIQ")
        return TensorHead(name, math.prod(sizes), kind)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._unpack(_form(kind))[0]
        item, length = self._unpack("IQ")
        if item == _STRING:
            for _ in range(length):
                self._skip(*self._unpack("Q"))
            return SkippedArray(length)
        form = _form(item)
        if length > _LONGEST:
            self._skip(length * struct.calcsize("<" + form))
            return SkippedArray(length)
        return list(self._unpack(f"{length}{form}"))

    def _string(self) -> str:
        return self._bytes(*self._unpack("Q")).decode(errors="replace")

    def _unpack(self, form: str) -> tuple[Any, ...]:
        form = "<" + form
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _bytes(self, count: int) -> bytes:
        self._take(count)
        return self._file.read(count)

    def _skip(self, count: int) -> None:
        self._take(count)
        self._file.seek(count, os.SEEK_CUR)

    def _take(self, count: int) -> None:
        if count > self._left:
            raise ValueError("it ends within its head")
        self._left -= count


def _form(kind: int) -> str:
    if kind not in _FORMATS:
        raise ValueError(f"it has a field of type {kind}")
    return _FORMATS[kind]
