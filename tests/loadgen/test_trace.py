"""A trace is read whole or refused with the line and the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadgen.trace import Session, TraceError, read_trace, trace_lines, turn_inputs

SCHEMA = Path(__file__).resolve().parents[2] / "traces" / "chat.schema.json"
HEADER: dict[str, Any] = {"format": "paged-top-chat", "version": 1, "systems": {"main": "Be kind."}}
TURN: dict[str, Any] = {"user": "Hi", "user_tokens": 1, "output_tokens": 4, "seed": 1}
AGAIN: dict[str, Any] = {"regenerates": 0, "output_tokens": 4, "seed": 2, "think": 1.5}


def session(*turns: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"session": "a", "arrival": 0.5, "system": "main", "turns": list(turns) or [TURN], **changes}


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts))
    return path


def test_round_trip(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", HEADER, session(TURN, AGAIN, {**TURN, "think": 2, "parent": None}))
    trace = read_trace(path)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(b"".join(trace_lines(trace.header, trace.sessions)))
    assert read_trace(copy) == trace
    assert trace.num_turns == 3


def test_no_final_newline_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(f"{json.dumps(HEADER)}\r\n{json.dumps(session())}".encode())
    assert len(read_trace(path).sessions) == 1


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in TURN.items() if key != name}


# (session line, field that the message names, what it says; True: the schema refuses it as well)
BAD_SESSIONS = [
    ('{"session": "a", ', "", "not JSON: Input data was truncated", True),
    ("", "", "not JSON", True),
    ("[]", "", "Expected object, got array", True),
    (session(TURN, arrival="1"), "arrival: ", "Expected float, got str", True),
    (session(TURN, arrival=-1), "arrival: ", ">= 0", True),
    (session(TURN, arrival=1e300), "arrival: ", "<= 1000000000", True),
    (session(TURN, system="other"), "system: ", 'allowed are "main"', False),
    (session(TURN, session=""), "session: ", "length >= 1", True),
    (session(TURN, color="red"), "", "unknown field color", True),
    ({"session": "a", "arrival": 0, "system": "main"}, "", "missing required field turns", True),
    (session(turns=[]), "turns: ", "length >= 1", True),
    (session({**TURN, "output_tokens": 0}), "turns[0].output_tokens: ", ">= 1", True),
    (session({**TURN, "output_tokens": 2.5}), "turns[0].output_tokens: ", "Expected int", True),
    (session(TURN, {**TURN, "user_tokens": "7"}), "turns[1].user_tokens: ", "Expected int, got str", True),
    (session(TURN, {**TURN, "user": None}), "turns[1].user: ", "Expected str, got null", True),
    (session({**TURN, "seed": -1}), "turns[0].seed: ", ">= 0", True),
    (session({**TURN, "think": 3}), "turns[0].think: ", "must be 0 or absent", False),
    (session(TURN, {**TURN, "think": -3}), "turns[1].think: ", ">= 0", True),
    (session(without("user")), "turns[0].user: ", "missing", True),
    (session(without("user_tokens")), "turns[0].user_tokens: ", "missing", True),
    (session(without("seed")), "turns[0]: ", "missing required field seed", True),
    (session(TURN, {**TURN, "parent": 1}), "turns[1].parent: ", "index of an earlier turn, got 1", False),
    (session(TURN, {**AGAIN, "regenerates": 1}), "turns[1].regenerates: ", "index of an earlier turn, got 1", False),
    (session(TURN, {**AGAIN, "user": "Hi"}), "turns[1].user: ", "not allowed beside regenerates", True),
    (session(TURN, {**AGAIN, "parent": 0}), "turns[1].parent: ", "not allowed beside regenerates", True),
]


@pytest.mark.parametrize(("line", "field", "says", "schema_too"), BAD_SESSIONS)
def test_bad_session(tmp_path: Path, line: Any, field: str, says: str, schema_too: bool) -> None:
    path = write(tmp_path / "bad.jsonl", HEADER, session(session="first"), line, session(session="last"))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert f"{path}: line 3: " in message
    assert field in message
    assert says in message
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    if not isinstance(line, str):
        assert validator.is_valid(line) is not schema_too


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (session(), "the first line must be the header"),
        ({**HEADER, "format": "other"}, 'format: must be "paged-top-chat", got "other"'),
        ({**HEADER, "version": 2}, "version: this loadgen reads version 1, got 2"),
        ({**HEADER, "systems": {}}, "systems: must name at least one"),
        ({**HEADER, "systems": {"main": ""}}, "systems[...]: Expected str of length >= 1"),
        ({**HEADER, "temperature": 3}, "temperature: Expected float <= 2"),
        ("not json", "not JSON: JSON is malformed"),
    ],
)
def test_bad_header(tmp_path: Path, header: Any, says: str) -> None:
    path = write(tmp_path / "bad.jsonl", header, session())
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert f"{path}: line 1" in str(caught.value)
    assert says in str(caught.value)


def test_sessions_must_differ_and_be_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", HEADER, session(), session())
    with pytest.raises(TraceError, match='line 3: session: "a" is there already'):
        read_trace(path)
    path = write(tmp_path / "t.jsonl", HEADER, session(arrival=2), session(session="b", arrival=1))
    with pytest.raises(TraceError, match=r"line 3: arrival: 1.0 is before the session above it \(2.0\)"):
        read_trace(path)


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "missing.jsonl")
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(TraceError, match="is empty"):
        read_trace(empty)
    with pytest.raises(TraceError, match="has a header but no session"):
        read_trace(write(tmp_path / "header.jsonl", HEADER))
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(TraceError, match="line 1"):
        read_trace(binary)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(json.dumps(HEADER).encode() + b"\n" + b'{"session": "\xe9"}\n')
    with pytest.raises(TraceError, match="line 2"):
        read_trace(latin)


def test_branches() -> None:
    turn = {"user": "x", "user_tokens": 1, "output_tokens": 1, "seed": 0}
    again = {"regenerates": 1, "output_tokens": 1, "seed": 1}
    made = [turn, {**turn, "user": "y"}, again, {**turn, "user": "z"}, {**turn, "user": "w", "parent": 0}]
    import msgspec

    inputs = turn_inputs(msgspec.convert(session(*made), Session))
    assert [(item.user, item.history) for item in inputs] == [
        ("x", ()),
        ("y", (0,)),
        ("y", (0,)),
        ("z", (0, 2)),
        ("w", (0,)),
    ]
