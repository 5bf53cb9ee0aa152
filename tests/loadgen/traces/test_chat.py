"""Our own format is read or refused with the line and the field, in both versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from loadgen.traces.chat import trace_lines
from loadgen.traces.formats import Format, open_trace
from loadgen.traces.model import Header, Session, TraceError, turn_inputs

SCHEMA = Path(__file__).resolve().parents[3] / "traces" / "chat.schema.json"
HEADER: dict[str, Any] = {"format": "paged-top-chat", "version": 1, "systems": {"main": "Be kind."}}
TURN: dict[str, Any] = {"user": "Hi", "user_tokens": 1, "output_tokens": 4, "seed": 1}
HEADER2: dict[str, Any] = {"format": "paged-top-chat", "version": 2, "systems": {"main": "Be kind."}, "block_size": 16}
AGAIN: dict[str, Any] = {"regenerates": 0, "output_tokens": 4, "seed": 2, "think": 1.5}


def session(*turns: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"session": "a", "arrival": 0.5, "system": "main", "turns": list(turns) or [TURN], **changes}


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts))
    return path


def schema_of(kind: str) -> jsonschema.Draft202012Validator:
    """The schema's part for one kind of line of one version."""
    schema = json.loads(SCHEMA.read_text())
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema["$defs"]})


def read_trace(path: Path) -> tuple[Header, list[Session]]:
    trace = open_trace(path, Format.CHAT)
    return trace.header, list(trace.sessions())


def test_round_trip(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", HEADER, session(TURN, AGAIN, {**TURN, "think": 2, "parent": None}))
    header, sessions = read_trace(path)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(b"".join(trace_lines(header, sessions)))
    assert read_trace(copy) == (header, sessions)
    assert len(sessions[0].turns) == 3


def test_no_final_newline_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(f"{json.dumps(HEADER)}\r\n{json.dumps(session())}".encode())
    assert len(read_trace(path)[1]) == 1


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in TURN.items() if key != name}


# (session line, field that the message names, what it says; True: the schema refuses it as well)
BAD_SESSIONS = [
    ('{"session": "a", ', "", "not JSON: Input data was truncated", True),
    ("", "", "not JSON", True),
    ("[]", "", "Expected object, got array", True),
    (session(TURN, arrival="1"), "arrival: ", "Expected float | null, got str", True),
    (session(TURN, arrival=-1), "arrival: ", ">= 0", True),
    (session(TURN, arrival=1e300), "arrival: ", "<= 1000000000", True),
    (session(TURN, arrival=None), "arrival: ", "missing", True),
    (session(TURN, system="other"), "system: ", 'allowed are "main"', False),
    (session(TURN, session=""), "session: ", "length >= 1", True),
    (session(TURN, color="red"), "", "unknown field color", True),
    ({"session": "a", "arrival": 0, "system": "main"}, "", "missing required field turns", True),
    (session(TURN, system=None), "system: ", "missing", True),
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
    (session(without("output_tokens")), "turns[0].output_tokens: ", "missing", True),
    (session({**TURN, "at": 0.5}), "turns[0].at: ", "needs a header of version 2", True),
    (session({**TURN, "reply": "x"}), "turns[0].reply: ", "needs a header of version 2", True),
    (session({"input_tokens": 3}), "turns[0].input_tokens: ", "needs a header of version 2", True),
    (session(TURN, labels={"a": 1}), "labels: ", "needs a header of version 2", True),
    (session(TURN, turn=1), "turn: ", "needs a header of version 2", True),
    (session(TURN, {**TURN, "parent": 1}), "turns[1].parent: ", "index of an earlier turn, got 1", False),
    (session(TURN, {**AGAIN, "regenerates": 1}), "turns[1].regenerates: ", "index of an earlier turn, got 1", False),
    (session(TURN, {**AGAIN, "user": "Hi"}), "turns[1].regenerates: ", "not allowed beside user", True),
    (session(TURN, {**AGAIN, "parent": 0}), "turns[1].parent: ", "not allowed without user", True),
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
    validator = schema_of("session1")
    if not isinstance(line, str):
        assert validator.is_valid(line) is not schema_too


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (session(), "the first line must be the header"),
        ({**HEADER, "format": "other"}, 'format: must be "paged-top-chat", got "other"'),
        ({**HEADER, "version": 3}, "version: this loadgen reads versions 1 and 2, got 3"),
        ({**HEADER, "block_size": 16}, "block_size: needs version 2"),
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
    with pytest.raises(TraceError, match=r"line 3: arrival: -1.0 s after the first one is before .* --sort"):
        read_trace(path)


def test_a_file_without_sessions(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has a header but no session"):
        read_trace(write(tmp_path / "header.jsonl", HEADER))
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(TraceError, match=r"empty.jsonl: is empty$"):
        read_trace(empty)


PROMPT: dict[str, Any] = {"input_tokens": 33, "hash_ids": [1, 2, 3], "output_tokens": 4}
REQUEST: dict[str, Any] = {"request": {"path": "/v1/completions", "body": {"prompt": "x", "n": [1, 2.5, None]}}}


def session2(*turns: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"session": "a", "arrival": 0.0, "turns": list(turns), **changes}


def test_version_2_holds_what_other_formats_hold(tmp_path: Path) -> None:
    chat: list[dict[str, Any]] = [
        {"user": "Hi", "reply": "Ho"},
        {"user": "And?", "at": 3.5},
        {"regenerates": 1, "think": 2},
    ]
    lines = [
        HEADER2,
        session2(*chat, system="main"),
        session2(PROMPT, session="b", conversation="c", turn=2, labels={"type": "text", "cost": 1.5}),
        session2(REQUEST, session="d", arrival=7.25),
    ]
    schema = schema_of("session2")
    schema_of("header2").validate(HEADER2)
    for line in lines[1:]:
        schema.validate(line)
    header, sessions = read_trace(write(tmp_path / "t.jsonl", *lines))
    assert header.block_size == 16
    assert [one.arrival for one in sessions] == [0.0, 0.0, 7.25]
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(b"".join(trace_lines(header, sessions)))
    assert read_trace(copy) == (header, sessions)
    for text in copy.read_text().splitlines()[1:]:
        schema.validate(json.loads(text))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (session2({"user": "x", "input_tokens": 3}), "turns[0].input_tokens: not allowed beside user"),
        (session2({"output_tokens": 3}), "turns[0].user: missing; a turn has user, regenerates, input_tokens or"),
        (session2({**PROMPT, "hash_ids": [1]}), "turns[0].hash_ids: must hold 3 ids, one for each 16 tokens of 33"),
        (session2({**PROMPT, "hash_ids": [1]}), "got 1; a block size of 64 would fit"),
        (session2({"user": "x", "hash_ids": [1]}), "turns[0].hash_ids: not allowed without input_tokens"),
        (session2({"user": "x"}, {"user": "y", "think": 1, "at": 2}), "turns[1].at: not allowed beside think"),
        (session2({"user": "x"}, {"user": "y", "at": 2}, {"user": "z", "at": 1}), "turns[2].at: 1.0 is not in order"),
        (session2({"user": "x", "at": 1}), "turns[0].at: 1.0 is not in order"),
        (session2({"user": "x"}, {"user": "y", "at": 1}, arrival=None), "turns[1].at: not allowed in a session with"),
        (session2({"user": "x"}, PROMPT, {"user": "y"}), "turns[2].parent: turn 1 has no message"),
        (session2(PROMPT, {"regenerates": 0}), "turns[1].regenerates: turn 0 has no message"),
        (session2(PROMPT, system="other"), 'system: "other" is not in the header; allowed are "main"'),
        (session2({"request": {"path": "", "body": {}}}), "turns[0].request.path: Expected"),
        (session2({"request": {"path": "/x", "body": []}}), "turns[0].request.body: Expected"),
        (session2({**PROMPT, "input_tokens": 0}), "turns[0].input_tokens: Expected"),
        ({"session": "a", "turns": [PROMPT]}, "missing required field arrival"),
    ],
)
def test_bad_session_of_version_2(tmp_path: Path, line: dict[str, Any], says: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(write(tmp_path / "t.jsonl", HEADER2, line))
    assert "line 2: " in str(caught.value)
    assert says in str(caught.value)


def test_hash_ids_need_a_block_size(tmp_path: Path) -> None:
    header = {key: value for key, value in HEADER2.items() if key != "block_size"}
    with pytest.raises(TraceError, match="the header has no block_size"):
        read_trace(write(tmp_path / "t.jsonl", header, session2(PROMPT)))


def test_branches() -> None:
    turn: dict[str, Any] = {"user": "x", "user_tokens": 1, "output_tokens": 1, "seed": 0}
    again: dict[str, Any] = {"regenerates": 1, "output_tokens": 1, "seed": 1}
    made: list[dict[str, Any]] = [
        turn,
        {**turn, "user": "y"},
        again,
        {**turn, "user": "z"},
        {**turn, "user": "w", "parent": 0},
    ]
    inputs = turn_inputs(msgspec.convert(session(*made), Session))
    assert [(item.user, item.history) for item in inputs if item] == [
        ("x", ()),
        ("y", (0,)),
        ("y", (0,)),
        ("z", (0, 2)),
        ("w", (0,)),
    ]
