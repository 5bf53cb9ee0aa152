"""The head of a GGUF file: lengths that lie are refused, and nothing is kept or waited for on their word."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from engine.loading.errors import ModelError
from engine.loading.gguf_file import convert
from engine.loading.gguf_head import read_gguf_head

UINT8, STRING, ARRAY = 0, 8, 9
MOST = 2**63


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def head(*fields: bytes, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(fields)) + b"".join(fields)


def field(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


ARCHITECTURE = field(b"general.architecture", STRING, text(b"llama"))
LIES = {
    "an array of bytes": head(ARCHITECTURE, field(b"a", ARRAY, struct.pack("<IQ", UINT8, MOST))),
    "an array of bytes that is kept": head(ARCHITECTURE, field(b"a", ARRAY, struct.pack("<IQ", UINT8, 9000))),
    "an array of texts": head(ARCHITECTURE, field(b"a", ARRAY, struct.pack("<IQ", STRING, MOST))),
    "a text in an array": head(ARCHITECTURE, field(b"a", ARRAY, struct.pack("<IQ", STRING, 1) + text(b"", MOST))),
    "a text": head(ARCHITECTURE, field(b"a", STRING, text(b"x", MOST))),
    "a key": head(ARCHITECTURE, text(b"x", MOST)),
    "the fields": b"GGUF" + struct.pack("<IQQ", 3, 0, MOST),
    "the tensors": b"GGUF" + struct.pack("<IQQ", 3, MOST, 0),
    "a tensor's dimensions": head(ARCHITECTURE, tensors=1) + text(b"t") + struct.pack("<I", 2**32 - 1),
    "nothing": b"",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_length_that_lies_is_refused(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(LIES[lie])
    with pytest.raises(ModelError, match="is not a GGUF file with a whole head"):
        read_gguf_head(path)
    with pytest.raises(ModelError, match="whole head"):  # before the gguf package runs on 2**63 items
        convert(path, tmp_path)


def test_what_a_head_says(tmp_path: Path) -> None:
    numbers = field(b"a", ARRAY, struct.pack("<IQ3B", UINT8, 3, 1, 2, 3))
    texts = field(b"b", ARRAY, struct.pack("<IQ", STRING, 2) + text(b"x") + text(b"yz"))
    long = field(b"c", ARRAY, struct.pack("<IQ", UINT8, 70_000) + bytes(70_000))
    path = tmp_path / "model.gguf"
    tensor = text(b"t") + struct.pack("<IQQIQ", 2, 3, 5, 1, 0)
    path.write_bytes(head(ARCHITECTURE, numbers, texts, long, tensors=1) + tensor)
    fields, tensors = read_gguf_head(path)
    assert fields == {"general.architecture": "llama", "a": [1, 2, 3], "b": 2, "c": 70_000}
    assert tensors == [("t", 15, 1)]


def test_a_field_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(head(field(b"general.architecture", STRING, text(b"ll\xff"))))
    with pytest.raises(ModelError, match=r"general\.architecture cannot be read"):
        convert(path, tmp_path)
