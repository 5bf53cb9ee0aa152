"""Frames on the socket between the API process and the core: four bytes of length, then msgpack."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from engine.messages import FromCore, ToCore

_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
decode_to_core = msgspec.msgpack.Decoder(ToCore).decode
decode_from_core = msgspec.msgpack.Decoder(FromCore).decode


def frame(message: ToCore | FromCore) -> bytes:
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameSplitter:
    """Bytes as they are read, to the bodies of whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            yield bytes(self._buffer[start + _LENGTH.size : end])
            start = end
        del self._buffer[:start]
