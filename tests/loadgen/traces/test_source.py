"""Lines and array elements are cut where they end, whatever is read at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.traces import source
from loadgen.traces.model import TraceError
from loadgen.traces.source import Source

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\[]{},:\n é😀'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a"[}\\'), inner, max_size=3),
    max_leaves=10,
)
ELEMENTS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3) | st.lists(VALUES, max_size=3))


@given(
    elements=ELEMENTS,
    indent=st.none() | st.integers(0, 2),
    plain=st.booleans(),
    chunk=st.integers(1, 40),
    blank=st.text(" \t\r\n", max_size=3),
)
def test_elements_of_an_array(
    tmp_path_factory: pytest.TempPathFactory,
    elements: list[Any],
    indent: int | None,
    plain: bool,
    chunk: int,
    blank: str,
) -> None:
    path = tmp_path_factory.getbasetemp() / "array.json"
    path.write_bytes((blank + json.dumps(elements, indent=indent, ensure_ascii=plain) + blank).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "CHUNK", chunk)
        found = list(Source(path).elements())
    assert [json.loads(record) for _, record in found] == elements
    content = path.read_bytes()
    at = 0
    for line, record in found:
        at = content.index(record, at)
        assert line == content.count(b"\n", 0, at) + 1
        at += len(record)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "line 1: not JSON: expected an array"),
        ("{}", "line 1: not JSON: expected an array"),
        ("[\n{}", "line 2: not JSON: expected , or ] after"),
        ("[\n{} {}]", "line 2: not JSON: expected , or ] after"),
        ("[{},\n\n 1]", "line 3: not JSON: expected an object"),
        ("[{},]", "line 1: not JSON: expected an object"),
        ('[{"a": "]', "line 1: not JSON: the file ends within an element"),
        ('[{"a": [}', "line 1: not JSON: the file ends within an element"),
        ("[{}]\n[", "line 2: not JSON: more follows"),
    ],
)
def test_what_is_no_array(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "array.json"
    path.write_text(content)
    with pytest.raises(TraceError) as caught:
        list(Source(path).elements())
    assert f"{path}: {says}" in str(caught.value)


def test_too_long_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LONGEST_RECORD", 100)
    monkeypatch.setattr(source, "CHUNK", 10)
    path = tmp_path / "long"
    path.write_bytes(b"x" * 99 + b"\n" + b"y" * 101 + b"\n")
    with pytest.raises(TraceError, match="line 2: is longer than 100 bytes"):
        list(Source(path).lines())
    path.write_bytes(b'[{},\n{"a": "' + b"y" * 300 + b'"}]')
    with pytest.raises(TraceError, match="line 2: not JSON: an element is longer than 100 bytes"):
        list(Source(path).elements())


def test_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"\xef\xbb\xbfa\r\n\r\nb\n \n\n")
    assert list(Source(path).lines()) == [(1, b"a"), (2, b""), (3, b"b")]
    path.write_bytes(b"\n" * 2000 + b"a")
    with pytest.raises(TraceError, match="line 1: more than 1,000 empty lines follow"):
        list(Source(path).lines())


def test_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CHUNK", 100)
    path = tmp_path / "lines"
    path.write_bytes(b"0123456789\n" * 1000)
    read = Source(path)
    assert (read.bytes_read, read.size) == (0, 11_000)
    seen = [read.bytes_read for _ in read.lines()]
    assert seen == sorted(seen)
    assert seen[0] < 1000
    assert read.bytes_read == 11_000
