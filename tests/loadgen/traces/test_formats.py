"""Opening a trace: what format it is, its times, bad lines, gzip, and any bytes at all."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.traces.formats import READERS, WRITERS, Format, TimeUnit, detect, open_trace
from loadgen.traces.model import TraceError
from loadgen.traces.source import Source

# The start of a file of each format, with two sessions.
EXAMPLES: dict[Format, str] = {
    Format.CHAT: '{"format":"paged-top-chat","version":2}\n{"session":"a","arrival":1,"turns":[{"user":"x"}]}\n'
    '{"session":"b","arrival":3,"turns":[{"user":"y"},{"user":"z","at":4.5}]}\n',
    Format.MOONCAKE: '{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3000, "input_length": 512, "output_length": 7, "hash_ids": [0]}\n',
    Format.BAILIAN: '{"chat_id":5,"parent_chat_id":-1,"timestamp":1.0,"input_length":17,"output_length":132,'
    '"type":"text","turn":1,"hash_ids":[1089,1090]}\n'
    '{"chat_id":9,"parent_chat_id":5,"timestamp":3.0,"input_length":20,"output_length":1,'
    '"type":"text","turn":2,"hash_ids":[1089,1092]}\n',
    Format.BURSTGPT: "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "1,ChatGPT,472,18,490,Conversation log\n3,GPT-4,1087,230,1317,API log\n",
    Format.AZURE: "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:48.6805900,396,109",
    Format.SHAREGPT: '[{"id":"x_0","conversations":[{"from":"human","value":"Hi"},{"from":"gpt","value":"Ho"}]},\n'
    '{"id":"x_1","conversations":[{"from":"human","value":"Hi"}]}]',
    Format.VLLM: '{"prompt": "Say hi", "output_tokens": 10}\n{"prompt": "Say ho"}\n',
    Format.OPENAI_BATCH: '{"custom_id":"r1","method":"POST","url":"/v1/chat/completions","body":{"messages":[]}}\n'
    '{"custom_id":"r2","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}\n',
    Format.AIPERF: '{"session_id":"a","turns":[{"text":"Hi","timestamp":1000}]}\n{"text":"Ho","timestamp":3000}\n',
}
TIMED = [Format.CHAT, Format.MOONCAKE, Format.BAILIAN, Format.BURSTGPT, Format.AZURE, Format.AIPERF]


def write(folder: Path, content: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_every_format_is_read_and_written() -> None:
    assert set(READERS) == set(WRITERS) == set(EXAMPLES) == set(Format)


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("packed", [False, True])
def test_a_format_is_told_by_its_content(tmp_path: Path, format: Format, packed: bool) -> None:
    content = EXAMPLES[format].encode()
    trace = open_trace(write(tmp_path, gzip.compress(content) if packed else content))
    assert trace.format is format
    sessions = list(trace.sessions())
    assert len(sessions) == 2
    assert list(trace.sessions()) == sessions  # again from the start
    assert trace.bytes_read == trace.size > 0
    assert trace.header.recipe.get("source_format", format) == format


@pytest.mark.parametrize("format", TIMED)
def test_arrivals_are_counted_from_the_first(tmp_path: Path, format: Format) -> None:
    trace = open_trace(write(tmp_path, EXAMPLES[format]))
    assert [session.arrival for session in trace.sessions()] == [0.0, 2.0]
    if format is Format.CHAT:
        assert [turn.at for turn in list(trace.sessions())[1].turns][1] == 3.5


@pytest.mark.parametrize("format", sorted(set(Format) - set(TIMED)))
def test_formats_without_times(tmp_path: Path, format: Format) -> None:
    trace = open_trace(write(tmp_path, EXAMPLES[format]))
    assert {session.arrival for session in trace.sessions()} == {None}


@pytest.mark.parametrize("format", Format)
def test_line_ends_a_mark_of_utf_8_and_empty_last_lines(tmp_path: Path, format: Format) -> None:
    plain = list(open_trace(write(tmp_path, EXAMPLES[format])).sessions())
    text = "\ufeff" + EXAMPLES[format].replace("\r", "").replace("\n", "\r\n") + "\r\n \r\n\n"
    assert list(open_trace(write(tmp_path, text)).sessions()) == plain


@pytest.mark.parametrize("format", TIMED)
def test_a_time_before_the_one_above_names_the_line(tmp_path: Path, format: Format) -> None:
    lines = EXAMPLES[format].replace("\r\n", "\n").rstrip().split("\n")
    swapped = [*lines[:-2], lines[-1], lines[-2]]
    trace = open_trace(write(tmp_path, "\n".join(swapped)))
    with pytest.raises(TraceError) as caught:
        list(trace.sessions())
    field = READERS[format].time_field
    says = f"line {len(lines)}: {field}: -2.0 s after the first one is before the session above it (0.0 s)"
    assert says in str(caught.value)
    assert "loadgen convert --sort" in str(caught.value)
    assert len(list(trace.sessions(in_order=False))) == 2
    trace = open_trace(write(tmp_path, "\n".join(swapped)), skip_bad=True)
    assert len(list(trace.sessions())) == 1
    assert trace.bad.count == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"timestamp": -1, "input_length": 6, "output_length": 5}', "timestamp: Expected float >= 0"),
        ('{"timestamp": 3000, "input_length": 6}', "missing required field output_length"),
        ('{"timestamp": 3000, "input_length": 6, "output_length": 5, "color": 1}', "unknown field color"),
        ('{"timestamp": 3000, "input_length": "6", "output_length": 5}', "input_length: Expected int, got str"),
        ('{"timestamp": 3000,', "not JSON"),
        ("", "not JSON"),
        ('{"timestamp": 3e15, "input_length": 6, "output_length": 5}', "timestamp: more than 1e+09 s after the first"),
    ],
)
def test_a_bad_line_is_named_or_counted(tmp_path: Path, line: str, says: str) -> None:
    good = EXAMPLES[Format.MOONCAKE].splitlines()
    path = write(tmp_path, "\n".join([good[0], line, good[1]]))
    with pytest.raises(TraceError) as caught:
        list(open_trace(path).sessions())
    assert str(caught.value).startswith(f"{path}: line 2: ")
    assert says in str(caught.value)
    trace = open_trace(path, skip_bad=True)
    assert [session.session for session in trace.sessions()] == ["1", "3"]
    assert trace.bad.count == 1
    assert len(trace.bad.first) == 1
    assert says in trace.bad.first[0]


def test_what_is_nested_too_deep(tmp_path: Path) -> None:
    body = '{"a":' * 100_000
    line = f'{{"custom_id":"r","method":"POST","url":"/v1/x","body":{body}\n'
    with pytest.raises(TraceError, match="line 1: not JSON that can be read: nested too deep"):
        open_trace(write(tmp_path, line), Format.OPENAI_BATCH)


def test_a_cell_of_any_length_is_told_in_a_line(tmp_path: Path) -> None:
    cell = "9" * 200_000
    with pytest.raises(
        TraceError, match=r"line 4: ContextTokens: expected a whole number .* '9+ \.\.\. 9+'$"
    ) as raised:
        list(open_trace(write(tmp_path, f"{EXAMPLES[Format.AZURE]}\n2023-11-16 18:15:49.0,{cell},5\n")).sessions())
    assert len(str(raised.value)) < 1000


def test_only_the_first_bad_lines_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, EXAMPLES[Format.MOONCAKE] + "{}\n" * 50)
    trace = open_trace(path, skip_bad=True)
    assert len(list(trace.sessions())) == 2
    assert trace.bad.count == 50
    assert len(trace.bad.first) == 5
    assert "line 3: " in trace.bad.first[0]


def test_either_all_have_a_time_or_none(tmp_path: Path) -> None:
    timed, untimed = '{"text":"a","timestamp":1}\n', '{"text":"b"}\n'
    with pytest.raises(TraceError, match="line 2: timestamp: missing; the sessions above have one"):
        list(open_trace(write(tmp_path, timed + untimed)).sessions())
    with pytest.raises(TraceError, match="line 2: timestamp: the sessions above have none"):
        list(open_trace(write(tmp_path, untimed + timed)).sessions())


def test_the_unit_and_the_block_size_can_be_said(tmp_path: Path) -> None:
    path = write(tmp_path, EXAMPLES[Format.MOONCAKE].replace("[0, 1]", "[0, 1, 2]").replace("[0]", "[0, 3]"))
    with pytest.raises(TraceError, match="must hold 2 ids, one for each 512 tokens of 600, got 3; a block size of 256"):
        open_trace(path)
    trace = open_trace(path, block_size=256, time_unit=TimeUnit.SECONDS)
    assert [session.arrival for session in trace.sessions()] == [0, 2000]
    assert trace.header.block_size == 256
    assert trace.header.recipe["time_unit"] == "s"
    azure = write(tmp_path, EXAMPLES[Format.AZURE])
    with pytest.raises(TraceError, match="--block-size: the format azure has none to set"):
        open_trace(azure, block_size=16)
    with pytest.raises(TraceError, match="--time-unit: the format azure has none to set"):
        open_trace(azure, time_unit=TimeUnit.SECONDS)


def test_a_wrong_first_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"is of no format that loadgen reads; they are paged-top-chat, mooncake"):
        open_trace(write(tmp_path, "hello\n"))
    with pytest.raises(TraceError, match="is empty"):
        open_trace(write(tmp_path, ""))
    with pytest.raises(TraceError, match="is empty"):
        open_trace(write(tmp_path, "\n\n\n"))
    head = r"line 1 \(the first line must be the names of the columns\): "
    with pytest.raises(TraceError, match=head + "no column GeneratedTokens; needed are TIMESTAMP"):
        open_trace(write(tmp_path, "TIMESTAMP,ContextTokens\n"))
    with pytest.raises(TraceError, match=head + "Cost: unknown column; allowed are TIMESTAMP"):
        open_trace(write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens,Cost\n"))
    with pytest.raises(TraceError, match=head + "TIMESTAMP: a column that is there twice"):
        open_trace(write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens,TIMESTAMP\n"))


def test_a_format_is_told_past_bad_first_lines(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, "{bad\n" * 3 + EXAMPLES[Format.VLLM]), skip_bad=True)
    assert trace.format is Format.VLLM
    assert len(list(trace.sessions())) == 2
    assert trace.bad.count == 3


def test_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has no session; 2 bad lines were skipped, the first is line 1"):
        open_trace(write(tmp_path, '{"prompt": ""}\n' * 2), skip_bad=True)
    with pytest.raises(TraceError, match="has no session; left out: 1 chats without a message"):
        open_trace(write(tmp_path, '[{"conversations": []}]'))
    with pytest.raises(TraceError, match="has no session"):
        open_trace(write(tmp_path, "[]"))
    for format in Format:
        with pytest.raises(TraceError, match=r"trace: is empty$"):
            open_trace(write(tmp_path, ""), format)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        open_trace(tmp_path / "missing")
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        open_trace(tmp_path)
    with pytest.raises(TraceError, match="is no regular file"):
        open_trace(Path("/dev/null"))
    with pytest.raises(TraceError, match="cannot be read"):
        open_trace(Path("a\0b"))
    torn = gzip.compress(EXAMPLES[Format.VLLM].encode() * 1000)
    with pytest.raises(TraceError, match="cannot be read: Compressed file ended"):
        list(open_trace(write(tmp_path, torn[:-20])).sessions())
    with pytest.raises(TraceError, match="cannot be read"):
        list(open_trace(write(tmp_path, torn[:40] + b"\xff" * 40 + torn[80:])).sessions())
    with pytest.raises(TraceError, match="line 1"):
        open_trace(write(tmp_path, b"\x89PNG\r\n\x1a\n\xff\xfe"))
    with pytest.raises(TraceError, match="line 1: not "):
        open_trace(write(tmp_path, b'{"prompt": "\xe9"}\n'))


@pytest.mark.parametrize(("name", "count"), [("mooncake_excerpt.jsonl", 100), ("azure_excerpt.csv", 100)])
def test_excerpts_of_real_traces(name: str, count: int) -> None:
    trace = open_trace(Path(__file__).parents[2] / "data" / "traces" / name)
    sessions = list(trace.sessions())
    assert len(sessions) == count
    assert sessions[0].arrival == 0
    assert not trace.bad.count
    assert not trace.left_out


FIELDS = sorted({field for text in EXAMPLES.values() for field in re.findall(r'"([a-z_]+)":', text)})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def nearly(draw: st.DrawFn) -> bytes:
    """An example that was changed somewhere: bytes cut out, doubled or put in, or a line of other JSON."""
    content = draw(st.sampled_from(list(EXAMPLES.values()))).encode()
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 20)))
        put = draw(st.binary(max_size=4) | JSON.map(lambda value: b"\n" + json.dumps(value).encode() + b"\n"))
        content = content[:start] + put + content[end:]
    return content


@settings(max_examples=300, deadline=None)
@given(content=nearly() | st.binary(max_size=60), format=st.none() | st.sampled_from(Format), skip_bad=st.booleans())
def test_any_bytes_are_a_trace_or_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, format: Format | None, skip_bad: bool
) -> None:
    path = write(tmp_path_factory.getbasetemp(), content, "any")
    arrivals: list[Any] = []
    try:
        trace = open_trace(path, format, skip_bad=skip_bad)
        arrivals = [session.arrival for session in trace.sessions()]
    except TraceError as error:
        assert str(path) in str(error)  # noqa: PT017
    if any(arrival is not None for arrival in arrivals):
        assert arrivals == sorted(arrivals)
        assert arrivals[0] == 0


@given(content=st.binary(max_size=60))
def test_telling_the_format_of_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = write(tmp_path_factory.getbasetemp(), content, "any")
    try:
        assert detect(Source(path)) in Format
    except TraceError as error:
        assert str(path) in str(error)  # noqa: PT017
