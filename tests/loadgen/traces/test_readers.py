"""What each format's lines mean: units, chats, what is left out, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from loadgen.traces.azure import Dates, date
from loadgen.traces.formats import Format, TraceFile, open_trace
from loadgen.traces.model import Session, TraceError, check_session
from loadgen.traces.reading import Recent
from loadgen.traces.rows import cells, line_of

SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces"


def trace_of(folder: Path, content: str | list[dict[str, Any]], **options: Any) -> TraceFile:
    if not isinstance(content, str):
        content = "".join(json.dumps(line) + "\n" for line in content)
    path = folder / "trace"
    path.write_bytes(content.encode())
    return open_trace(path, **options)


def sessions_of(folder: Path, content: str | list[dict[str, Any]], **options: Any) -> list[Session]:
    trace = trace_of(folder, content, **options)
    sessions = list(trace.sessions())
    for session in sessions:
        check_session(session, trace.header)
    return sessions


def refusal(folder: Path, content: str | list[dict[str, Any]]) -> str:
    with pytest.raises(TraceError) as caught:
        list(trace_of(folder, content).sessions())
    return str(caught.value)


# Mooncake and Bailian


def test_mooncake(tmp_path: Path) -> None:
    line = {"timestamp": 500, "input_length": 513, "output_length": 3, "hash_ids": [46, 47]}
    trace = trace_of(tmp_path, [line, {**line, "timestamp": 1250.5}])
    (first, second) = trace.sessions()
    assert (first.arrival, second.arrival) == (0, 0.7505)
    assert (first.session, second.session) == ("1", "2")
    (turn,) = first.turns
    assert (turn.input_tokens, turn.output_tokens, turn.hash_ids, turn.user) == (513, 3, (46, 47), UNSET)
    assert trace.header.block_size == 512
    assert trace.header.recipe == {"source_format": "mooncake", "time_unit": "ms"}


def chat(chat_id: int, parent: int, turn: int, time: float) -> dict[str, Any]:
    line = {"chat_id": chat_id, "parent_chat_id": parent, "timestamp": time, "input_length": 17, "output_length": 2}
    return {**line, "type": "text", "turn": turn, "hash_ids": [chat_id, 1]}


def test_bailian_links_chats(tmp_path: Path) -> None:
    lines = [chat(5, -1, 1, 0.1), chat(6, -1, 1, 0.2), chat(7, 5, 2, 60), chat(8, 7, 3, 61.5), chat(9, 1000, 4, 62)]
    sessions = sessions_of(tmp_path, lines)
    assert [(one.session, one.conversation, one.turn) for one in sessions] == [
        ("5", "5", 1),
        ("6", "6", 1),
        ("7", "5", 2),
        ("8", "5", 3),
        ("9", "1000", 4),  # its chat began before the trace did
    ]
    assert sessions[3].arrival == 61.4
    assert sessions[3].labels == {"parent_chat_id": 7, "type": "text"}
    assert trace_of(tmp_path, lines).header.block_size == 16
    assert "parent_chat_id: Expected `int` >= -1".replace("`", "") in refusal(tmp_path, [chat(5, -2, 1, 0)])
    assert "turn: Expected int >= 1" in refusal(tmp_path, [chat(5, -1, 0, 0)])


def test_a_long_trace_forgets_old_chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recent, "LIMIT", 2)
    lines = [chat(1, -1, 1, 0), chat(2, 1, 2, 1), chat(3, -1, 1, 2), chat(4, -1, 1, 3), chat(5, 2, 3, 4)]
    assert [one.conversation for one in sessions_of(tmp_path, lines)] == ["1", "1", "3", "4", "2"]


# BurstGPT


OLD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
NEW = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_burstgpt_leaves_failures_out(tmp_path: Path) -> None:
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n118.5,GPT-4,417,276,693,API log\n"
    trace = trace_of(tmp_path, OLD + rows)
    sessions = list(trace.sessions())
    assert [(one.session, one.arrival) for one in sessions] == [("2", 0), ("4", 113.5)]
    assert sessions[1].labels == {"Model": "GPT-4", "Log Type": "API log"}
    assert sessions[1].conversation is UNSET
    assert trace.left_out == {"requests that failed (0 response tokens)": 1}
    assert trace.bad.count == 0


def test_burstgpt_with_sessions(tmp_path: Path) -> None:
    rows = (
        "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
        "19440161.0,,2,ChatGPT,36,29,65,API log\n"
        "19440192.0,1722ac82,8.5,GPT-4,1779,123,1902,Conversation log\n"
    )
    first, second, third = sessions_of(tmp_path, NEW + rows)
    assert (first.conversation, first.turn, second.conversation, second.turn) == ("1722ac82", 1, UNSET, UNSET)
    assert (third.conversation, third.turn, third.arrival) == ("1722ac82", 2, 82)
    assert third.labels == {"Model": "GPT-4", "Log Type": "Conversation log", "Elapsed time": 8.5}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("-5,ChatGPT,472,18,490,x", "Timestamp: expected a number from 0 on, got '-5'"),
        ("nan,ChatGPT,472,18,490,x", "Timestamp: expected a number from 0 on, got 'nan'"),
        ("5,ChatGPT,0,18,18,x", "Request tokens: expected a whole number from 1 to 10000000, got '0'"),
        ("5,ChatGPT,1_0,18,28,x", "Request tokens: expected a whole number"),
        ("5,ChatGPT,472,1.5,490,x", "Response tokens: expected a whole number from 0"),
        ("5,ChatGPT,472,18,491,x", "Total tokens: must be 490, Request tokens and Response tokens together, got 491"),
        ("5,ChatGPT,472,18,490", "must have 6 cells, one for each column, got 5"),
        ('5,"ChatGPT,472,18,490,x', "not a line of comma-separated values"),
    ],
)
def test_bad_rows(tmp_path: Path, row: str, says: str) -> None:
    message = refusal(tmp_path, f"{OLD}1,ChatGPT,1,1,2,x\n{row}\n")
    assert "line 3: " in message
    assert says in message


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=6), min_size=2))
def test_cells_are_read_as_they_were_written(values: list[str]) -> None:
    assert cells(line_of(*values).rstrip(b"\n")) == [value.strip() for value in values]


# Azure


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("1970-01-01 00:00:00.0000001", 1),
        ("1970-01-01 00:00:00.5", 5_000_000),
        ("1970-01-01T00:01:00Z", 600_000_000),
        ("1970-01-01 02:00:00.000001+02:00", 10),
        ("1969-12-31 23:00:00-0100", 0),
        ("1970-01-01 00:00:00.123456789", 1_234_568),
        ("2023-11-16 18:15:46.6805900", 17001585466805900),
    ],
)
def test_dates(text: str, ticks: int) -> None:
    assert Dates().ticks(text) == ticks


@given(st.integers(-(10**16), 10**17))
def test_dates_are_read_as_they_were_written(ticks: int) -> None:
    assert Dates().ticks(date(ticks)) == ticks


@pytest.mark.parametrize(
    "text",
    ["2023-13-16 18:15:46", "2023-11-16 18:15:60.0", "2023-11-16", "46.68", "2023-11-16 18:15:46.12345678901", ""],
)
def test_no_such_date(tmp_path: Path, text: str) -> None:
    message = refusal(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{text},1,1\n")
    assert "line 2: TIMESTAMP: " in message
    assert repr(text) in message


def test_azure_of_2024(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n"
    trace = trace_of(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    assert [one.arrival for one in trace.sessions()] == [0, 0.99007]
    assert trace.header.recipe["start"] == "2024-05-10 00:00:00.0099300"


@pytest.mark.skipif(not SHARED.exists(), reason=f"the real traces are not at {SHARED}")
def test_the_real_traces() -> None:
    azure = list(open_trace(SHARED / "AzureLLMInferenceTrace_conv.csv").sessions())
    assert len(azure) == 19_366
    assert azure[-1].arrival == 3501.721937
    trace = open_trace(SHARED / "mooncake_conversation_trace.jsonl")
    mooncake = list(trace.sessions())
    assert (len(mooncake), mooncake[-1].arrival) == (12_031, 3536.999)
    assert (trace.bad.count, trace.left_out) == (0, {})


# ShareGPT


def said(*messages: str) -> list[dict[str, str]]:
    return [dict(zip(("from", "value"), message.split(": ", 1), strict=True)) for message in messages]


def test_sharegpt(tmp_path: Path) -> None:
    chats: list[dict[str, Any]] = [
        {"id": "a_0", "conversations": said("human: q1", "gpt: a1", "human: q2")},
        {"id": "a_1", "conversations": said("gpt: cut", "human: q3", "gpt: a3", "gpt: again", "human: q4", "gpt: ")},
        {"id": "b_0", "conversations": []},
        {"id": "b_1", "conversations": said("gpt: alone")},
        {"id": "c_0", "conversations": said("system: Be kind.", "human: ", "gpt: what?", "user: q5", "bing: a5")},
        {"id": 7, "conversations": said("human: q6", "human: q7"), "model": "x"},
    ]
    trace = trace_of(tmp_path, json.dumps(chats, indent=1))
    assert trace.format is Format.SHAREGPT
    sessions = list(trace.sessions())
    assert [one.session for one in sessions] == ["a_0", "a_1", "c_0", "7"]
    assert [[(turn.user, turn.reply) for turn in one.turns] for one in sessions] == [
        [("q1", "a1"), ("q2", UNSET)],
        [("q3", "a3"), ("q4", "")],
        [("q5", "a5")],
        [("q6", UNSET), ("q7", UNSET)],
    ]
    assert trace.left_out == {
        "answers that open a chat, whose question is not there": 2,
        "answers after another answer": 1,
        "chats without a message": 2,
        "system messages": 1,
        "empty messages, with their answers": 1,
    }
    assert next(trace_of(tmp_path, chats).sessions()) == sessions[0]  # one a line


def test_bad_sharegpt(tmp_path: Path) -> None:
    good = {"id": "a", "conversations": said("human: q")}
    bad = {"id": "b", "conversations": said("human: q", "alien: a")}
    text = f"[{json.dumps(good)},\n{json.dumps(bad)},\n{json.dumps(good)}]"
    assert "line 2: conversations[1].from: allowed are human, user, gpt, " in refusal(tmp_path, text)
    trace = trace_of(tmp_path, text, skip_bad=True)
    assert len(list(trace.sessions())) == 2
    assert trace.bad.count == 1
    assert "line 1: missing required field conversations" in refusal(tmp_path, '[{"a": 1}]').replace("Object ", "")


# vLLM and OpenAI


def test_vllm(tmp_path: Path) -> None:
    first, second = sessions_of(tmp_path, [{"prompt": "Hi", "output_tokens": 10}, {"prompt": "Ho"}])
    assert (first.turns[0].user, first.turns[0].output_tokens) == ("Hi", 10)
    assert second.turns[0].output_tokens is UNSET
    assert "output_tokens: Expected int >= 1" in refusal(tmp_path, [{"prompt": "Hi", "output_tokens": 0}])
    assert "unknown field images" in refusal(tmp_path, [{"prompt": "Hi", "images": []}])


def test_openai_batch(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "é"}], "max_tokens": 3, "x": [1.5, None, {}]}
    line = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (session,) = sessions_of(tmp_path, [line])
    assert session.session == "r1"
    request = session.turns[0].request
    assert request is not UNSET
    assert (request.path, request.body) == ("/v1/chat/completions", body)
    assert "method: Invalid enum value 'GET'" in refusal(tmp_path, [{**line, "method": "GET"}])
    assert "url: " in refusal(tmp_path, [{**line, "url": "https://api.openai.com/v1/chat/completions"}])
    assert "body: Expected object, got str" in refusal(tmp_path, [{**line, "body": "x"}])


# AIPerf


def test_aiperf_chats(tmp_path: Path) -> None:
    turns = [{"text": "Hi", "delay": 100, "output_length": 20}, {"text": "Ho", "delay": 250}, {"text": "Hm"}]
    trace = trace_of(tmp_path, [{"session_id": "a", "turns": turns}, {"text": "alone", "output_length": None}])
    first, second = trace.sessions()
    assert (first.session, first.arrival) == ("a", None)
    assert [(turn.user, turn.think, turn.parent) for turn in first.turns] == [
        ("Hi", 0.0, UNSET),
        ("Ho", 0.25, UNSET),
        ("Hm", 0.0, UNSET),
    ]
    assert first.turns[0].output_tokens == 20
    assert (second.session, len(second.turns)) == ("2", 1)
    assert trace.left_out == {"delays before a chat's first turn": 1}


def test_aiperf_times(tmp_path: Path) -> None:
    chat_line = {"session_id": "a", "turns": [{"text": "x", "timestamp": 500}, {"text": "y", "timestamp": 900.5}]}
    (session,) = sessions_of(tmp_path, [chat_line])
    assert (session.arrival, session.turns[0].at, session.turns[1].at) == (0, UNSET, 0.4005)


def test_aiperf_rows_of_single_turns(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"session_id": "a", "text": "1", "timestamp": 0},
        {"session_id": "a", "text": "2", "delay": 50},
        {"session_id": "b", "text": "3", "timestamp": 10},
        {"text": "4", "timestamp": 20},
        {"text": "5", "timestamp": 30},
        {"session_id": "c", "turns": [{"text": "6", "timestamp": 40}]},
        {"session_id": "d", "text": "7", "timestamp": 50, "type": "single_turn", "role": "user"},
    ]
    sessions = sessions_of(tmp_path, lines)
    assert [one.session for one in sessions] == ["a", "b", "4", "5", "c", "d"]
    assert [(turn.think, turn.parent) for turn in sessions[0].turns] == [(0.0, UNSET), (0.05, None)]  # each by itself
    assert 'line 8: session_id: "a" is there already' in refusal(tmp_path, [*lines, lines[0]])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"text": "x", "timestamp": 1, "delay": 1}, "line 2: delay: not allowed beside timestamp"),
        ({"turns": [{"text": "x"}, {"text": "y", "timestamp": 1, "delay": 1}]}, "line 2: turns[1].delay: not allowed"),
        ({"turns": []}, "line 2: turns: Expected array of length >= 1"),
        ({"turns": [{"text": ""}]}, "line 2: turns[0].text: Expected str of length >= 1"),
        ({"turns": [{"text": "x", "images": ["y"]}]}, "line 2: turns[0]: Object contains unknown field images"),
        ({"text": "x", "role": "system"}, "line 2: role: Invalid enum value 'system'"),
        ({"turns": [{"text": "x"}, {"text": "y", "session_id": "b"}]}, "line 2: turns[1].session_id: not allowed"),
        (
            {"turns": [{"text": "x", "timestamp": 5}, {"text": "y", "timestamp": 4}]},
            "line 2: turns[1].timestamp: 4.0 is before that of a turn above it",
        ),
        (
            {"turns": [{"text": "x"}, {"text": "y", "timestamp": 4}]},
            "line 2: turns[1].timestamp: not allowed where the session's first turn has none",
        ),
    ],
)
def test_bad_aiperf(tmp_path: Path, line: dict[str, Any], says: str) -> None:
    assert says in refusal(tmp_path, [{"text": "first"}, line, {"text": "last"}])
