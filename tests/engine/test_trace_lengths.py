"""Every format of trace gives the same kind of request, and a bad line is refused by file, line and field."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from engine.trace_lengths import TracedRequest, TraceError, read_trace

CHAT500 = Path(__file__).resolve().parents[2] / "traces" / "chat500.jsonl"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"

HEADER: dict[str, Any] = {"format": "paged-top-chat", "version": 1, "systems": {"main": "Be kind."}, "temperature": 0.7}
TURN: dict[str, Any] = {"user": "Hi", "user_tokens": 1, "output_tokens": 4, "seed": 1}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def mooncake(**changes: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8], **changes}


def session(*turns: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"session": "a", "arrival": 0.5, "system": "main", "turns": list(turns) or [TURN], **changes}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_mooncake_is_in_milliseconds_and_blocks_of_512(tmp_path: Path) -> None:
    path = write(tmp_path / "t", mooncake(timestamp=3000), mooncake(input_length=1024, hash_ids=[7, 9]))
    first, second = read_trace(path)
    assert (first.arrival, first.prompt_tokens, first.segments) == (0.0, 1024, ((7, 512), (9, 512)))
    assert (second.arrival, second.output_tokens, second.segments) == (3.0, 5, ((7, 512), (8, 88)))
    assert first.answer != second.answer
    assert {first.answer, second.answer}.isdisjoint({7, 8, 9})


def test_azure_has_seven_digits_windows_line_ends_and_no_final_newline(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(f"{AZURE}\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109".encode())
    first, second = read_trace(path)
    assert (first.arrival, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.arrival == pytest.approx(4.314579, abs=1e-6)
    assert second.segments[0] != first.segments[0]


def test_azure_of_2024_has_time_zones_and_columns_may_be_more(tmp_path: Path) -> None:
    lines = [f"Id,{AZURE}", "1,2024-05-12 00:00:01.5+00:00,10,2", "2,2024-05-12 00:00:00+00:00,20,3"]
    path = write(tmp_path / "t", *lines)
    assert [(r.arrival, r.prompt_tokens) for r in read_trace(path)] == [(0.0, 20), (1.5, 10)]


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbf" + f"{AZURE}\n2024-05-12 00:00:01,10,2\n".encode())
    assert len(read_trace(path)) == 1


def test_a_chats_turn_begins_with_the_prompt_and_answer_before(tmp_path: Path) -> None:
    turns = (TURN, {**TURN, "think": 2.0, "user_tokens": 3}, {**TURN, "think": 1.0, "user": "So?"})
    requests = read_trace(write(tmp_path / "t", HEADER, session(*turns)))
    for before, after in itertools.pairwise(requests):
        assert after.segments[:-1] == (*before.segments, (before.answer, before.output_tokens))
    # ChatML: 5 tokens around each message, 3 before an answer, 2 after it.
    assert [r.prompt_tokens for r in requests] == [(3 + 5) + (1 + 5) + 3, 17 + 4 + 2 + (3 + 5) + 3, 34 + 4 + 2 + 6 + 3]
    assert [r.after for r in requests] == [None, 0, 1]
    assert [r.think for r in requests] == [0.0, 2.0, 1.0]
    assert [r.arrival for r in requests] == [0.5, 2.5, 3.5]


def test_branches_of_a_chat(tmp_path: Path) -> None:
    turns = (
        TURN,
        {"regenerates": 0, "output_tokens": 9, "seed": 2},
        {**TURN, "user": "on"},
        {**TURN, "user": "back", "parent": 0},
        {**TURN, "parent": None},
    )
    first, again, on, back, anew = read_trace(write(tmp_path / "t", HEADER, session(*turns)))
    assert again.segments == first.segments == anew.segments
    assert again.answer != first.answer
    assert on.segments[: len(first.segments) + 1] == (*first.segments, (again.answer, 9))
    assert back.segments[: len(first.segments) + 1] == (*first.segments, (first.answer, 4))


def test_sessions_share_their_system_prompt_and_equal_first_messages(tmp_path: Path) -> None:
    other = session({**TURN, "user": "Ho"}, session="b")
    third = session(session="c")
    one, two, three = read_trace(write(tmp_path / "t", HEADER, session(), other, third))
    assert one.segments[0] == two.segments[0]
    assert one.segments[1] != two.segments[1]
    assert one.segments == three.segments


def test_turns_of_sessions_that_overlap_are_sorted_and_still_follow_their_own(tmp_path: Path) -> None:
    long = session(TURN, {**TURN, "think": 9.0}, {**TURN, "think": 9.0})
    late = session(TURN, {**TURN, "think": 1.0}, session="b", arrival=5.0)
    requests = read_trace(write(tmp_path / "t", HEADER, long, late))
    assert [r.arrival for r in requests] == [0.5, 5.0, 6.0, 9.5, 18.5]
    assert [r.after for r in requests] == [None, None, 1, 0, 3]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([""], ["empty"]),
        (['{"x":' * 20_000], ["nested too deeply"]),
        (["hello"], ["line 1", "Mooncake", "paged-top-chat", AZURE]),
        ([{"prompt": "x"}], ["line 1", "Mooncake"]),
        ([mooncake(), "{"], ["line 2", "not JSON"]),
        ([mooncake(), mooncake(input_length=0)], ["line 2", "input_length", ">= 1"]),
        ([mooncake(), mooncake(output_length="5")], ["line 2", "output_length", "int"]),
        ([mooncake(timestamp=-1)], ["line 1", "timestamp", ">= 0"]),
        ([mooncake(), mooncake(hash_ids=[1])], ["line 2", "hash_ids", "2 ids", "got 1"]),
        ([mooncake(hash_ids=[1, -1])], ["line 1", "hash_ids", ">= 0"]),
        ([mooncake(), "", mooncake()], ["line 2", "not JSON"]),
        (["TIMESTAMP,ContextTokens"], ["line 1", "GeneratedTokens"]),
        ([AZURE], ["no request"]),
        ([AZURE, "yesterday,1,2"], ["line 2", "TIMESTAMP", "yesterday"]),
        ([AZURE, "2023-11-16 18:15:46,1,2", "2023-11-16 18:15:46,1"], ["line 3", "2 fields"]),
        ([AZURE, "2023-11-16 18:15:46,0,2"], ["line 2", "ContextTokens", "from 1 to", "'0'"]),
        ([AZURE, "2023-11-16 18:15:46,1,2.5"], ["line 2", "GeneratedTokens", "'2.5'"]),
        ([{**HEADER, "version": 2}, session()], ["line 1", "version", "2"]),
        ([{**HEADER, "format": "x"}, session()], ["line 1", "format", "paged-top-chat"]),
        ([HEADER], ["no session"]),
        ([HEADER, session(system="other")], ["line 2", "system", '"main"']),
        ([HEADER, session(arrival=-1)], ["line 2", "arrival", ">= 0"]),
        ([HEADER, session({**TURN, "parent": 0})], ["line 2", "turns[0].parent", "earlier"]),
        ([HEADER, session({"regenerates": 0, "output_tokens": 1})], ["line 2", "turns[0].regenerates", "earlier"]),
        ([HEADER, session({"user": "Hi", "output_tokens": 1})], ["line 2", "turns[0].user_tokens", "missing"]),
        ([HEADER, session({**TURN, "output_tokens": 0})], ["line 2", "turns[0].output_tokens", ">= 1"]),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, lines: list[Any], words: list[str]) -> None:
    path = write(tmp_path / "t.jsonl", *lines)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nothing.*No such file"):
        read_trace(tmp_path / "nothing")


def test_chat500() -> None:
    requests = read_trace(CHAT500)
    assert len(requests) == 1127
    assert sum(r.output_tokens for r in requests) == 81_022
    system = {r.segments[0] for r in requests}
    assert len(system) == 1
    assert abs(system.pop()[1] - 1005) <= 10  # the tokenizer's count, and 5 around it
    check(requests)


@pytest.mark.parametrize(
    ("name", "count", "longest"),
    [("mooncake_conversation_trace.jsonl", 12_031, 126_195), ("AzureLLMInferenceTrace_conv.csv", 19_366, 14_050)],
)
def test_real_traces(name: str, count: int, longest: int) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"{SHARED / name} is not here")
    requests = read_trace(SHARED / name)
    assert len(requests) == count
    assert max(r.prompt_tokens for r in requests) == longest
    assert 3400 < requests[-1].arrival < 3600
    check(requests)


def check(requests: tuple[TracedRequest, ...]) -> None:
    assert all(sum(tokens for _, tokens in r.segments) == r.prompt_tokens for r in requests)
    assert all(one.arrival <= two.arrival for one, two in itertools.pairwise(requests))
    assert all(r.after is None or r.after < place for place, r in enumerate(requests))
