"""Frames on the socket between the API process and the core: four bytes of length, then msgpack."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from engine.messages import FromCore, ToCore

MAX_FRAME = 1 << 29  # bytes; the snapshot of a million blocks has about 80 million
_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
_decode_to_core = msgspec.msgpack.Decoder(ToCore).decode
_decode_from_core = msgspec.msgpack.Decoder(FromCore).decode


class BadFrame(ValueError):
    """What was read is no frame of ours: nothing after it can be made sense of."""


def frame(message: ToCore | FromCore) -> bytes:
    """Raises BadFrame for a message that is larger than any may be."""
    body = _encode(message)
    _check_length(len(body))
    return _LENGTH.pack(len(body)) + body


def decode_to_core(body: bytes) -> ToCore:
    """Raises BadFrame."""
    try:
        return _decode_to_core(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"a frame of {len(body)} bytes is no message: {error}") from None


def decode_from_core(body: bytes) -> FromCore:
    """Raises BadFrame."""
    try:
        return _decode_from_core(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"a frame of {len(body)} bytes is no message: {error}") from None


def _check_length(length: int) -> None:
    if length > MAX_FRAME:
        raise BadFrame(f"a frame has {length:,} bytes, and none may have more than {MAX_FRAME:,}")


class FrameSplitter:
    """Bytes as they are read, to the bodies of whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises BadFrame as soon as a length is read that no frame has."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            _check_length(length)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            yield bytes(self._buffer[start + _LENGTH.size : end])
            start = end
        del self._buffer[:start]
