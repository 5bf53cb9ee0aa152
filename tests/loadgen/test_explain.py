"""Errors of reading, in words that name the field."""

from __future__ import annotations

import msgspec
import pytest

from loadgen.explain import LONGEST, UNREADABLE, explain


class Line(msgspec.Struct):
    at: float
    name: str = ""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"at": "x"}', "at: Expected float, got str"),
        (b"[]", "Expected object, got array"),  # of the line itself there is no field to name
        (b"{", "not JSON: Input data was truncated"),
        (b"[" * 100_000, "not JSON that can be read: nested too deep"),
    ],
)
def test_what_is_wrong(line: bytes, says: str) -> None:
    kind: type = list if line.startswith(b"[[") else Line
    with pytest.raises(UNREADABLE) as caught:
        msgspec.json.decode(line, type=kind)
    assert explain(caught.value).startswith(says)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(UNREADABLE) as caught:
        b"a\xff".decode()
    assert explain(caught.value) == "not UTF-8: invalid start byte at its byte 1"


def test_what_a_line_quotes_is_not_told_whole() -> None:
    told = explain(ValueError(f"a: got {'x' * 10_000} in the end"))
    assert told.startswith("a: got xxx")
    assert told.endswith("xxx in the end")
    assert len(told) < LONGEST + 10
