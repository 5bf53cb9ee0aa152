"""Converting files: what comes back, what is changed on the way, and what the command says."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from loadgen import options
from loadgen.cli import main
from loadgen.commands import convert as command
from loadgen.results.output import OutputError
from loadgen.traces import convert as module
from loadgen.traces.convert import Changes, Converted, convert
from loadgen.traces.formats import Format, TimeUnit, open_trace
from loadgen.traces.model import TraceError

ROOT = Path(__file__).resolve().parents[3]
CHAT500 = ROOT / "traces" / "chat500.jsonl"
DATA = ROOT / "tests" / "data" / "traces"
SHARED = ROOT.parent / "shared" / "traces"


def test_bailian_keeps_its_chat_ids(tmp_path: Path) -> None:
    line = {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 20, "output_length": 132}
    lines = [{**line, "type": "search", "turn": 2, "hash_ids": [1089, 3]}]
    lines.append({**lines[0], "chat_id": 160, "parent_chat_id": 159, "timestamp": 70, "turn": 3})
    source = tmp_path / "bailian.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in lines))
    chat, back = tmp_path / "chat.jsonl", tmp_path / "back.jsonl"
    convert(open_trace(source), chat, Format.CHAT, Changes())
    convert(open_trace(chat), back, Format.BAILIAN, Changes())
    times = [0, 8.886]
    assert [json.loads(one) for one in back.read_text().splitlines()] == [
        {**one, "timestamp": time} for one, time in zip(lines, times, strict=True)
    ]


@pytest.mark.parametrize(("name", "format"), [("mooncake_excerpt.jsonl", "mooncake"), ("azure_excerpt.csv", "azure")])
def test_real_lines_come_back_as_they_were(tmp_path: Path, name: str, format: str) -> None:
    chat, back = tmp_path / "chat.jsonl.gz", tmp_path / "back"
    convert(open_trace(DATA / name), chat, Format.CHAT, Changes())
    convert(open_trace(chat), back, Format(format), Changes())
    before, after = (path.read_text().splitlines() for path in (DATA / name, back))
    if format == "mooncake":
        assert [json.loads(line) for line in after] == [json.loads(line) for line in before]
    else:
        assert after == before


@pytest.mark.skipif(not SHARED.exists(), reason=f"the real traces are not at {SHARED}")
def test_the_whole_real_trace_comes_back_as_it_was(tmp_path: Path) -> None:
    source = SHARED / "AzureLLMInferenceTrace_conv.csv"
    back = tmp_path / "back.csv"
    convert(open_trace(source), back, Format.AZURE, Changes())
    assert back.read_bytes().split() == source.read_bytes().split()


def test_chat500_comes_back_byte_for_byte(tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    assert convert(open_trace(CHAT500), copy, Format.CHAT, Changes()) == Converted(500, 1127, Counter(), ())
    assert copy.read_bytes() == CHAT500.read_bytes()


# Changes on the way


def mooncake(time: int, tokens: int = 5) -> str:
    return json.dumps({"timestamp": time, "input_length": tokens, "output_length": 1}) + "\n"


@pytest.mark.parametrize("memory", [1, 300, 1 << 20])
def test_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    monkeypatch.setattr(module, "SORTED_IN_MEMORY", memory)
    times = [random.Random(1).randrange(50) * 100 for _ in range(200)]
    source, target = tmp_path / "source.jsonl", tmp_path / "target.jsonl"
    source.write_text("".join(mooncake(time, number + 1) for number, time in enumerate(times)))
    convert(open_trace(source), target, Format.MOONCAKE, Changes(sort=True))
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    expected = sorted((time - min(times), number + 1) for number, time in enumerate(times))  # equal times stay in order
    assert [(line["timestamp"], line["input_length"]) for line in lines] == expected


def test_dates_before_the_first_row_are_sorted_too(tmp_path: Path) -> None:
    source, target = tmp_path / "source.csv", tmp_path / "target.csv"
    head, *rows = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "2023-11-16 18:15:46.6805900,11,2\n",
        "2023-11-16 18:15:50.0000000,10,2\n",
        "2023-11-17 00:00:00.0000001,12,2\n",
    )
    source.write_text(head + rows[1] + rows[0] + rows[2])
    convert(open_trace(source), target, Format.AZURE, Changes(sort=True))
    assert target.read_text() == head + "".join(rows)


def test_a_file_that_cannot_be_written_is_found_before_the_work(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonl"
    source.write_text(mooncake(0) + "{bad")
    with pytest.raises(OutputError, match=r"no/out: cannot be written"):
        convert(open_trace(source), tmp_path / "no" / "out", Format.CHAT, Changes(sort=True))


def test_a_pipe_is_no_file_to_replace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, pipe = tmp_path / "source.jsonl", tmp_path / "pipe"
    source.write_text(mooncake(0))
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main(["convert", str(source), str(pipe), "--to", "mooncake"]) == 0
    assert json.loads(os.read(reader, 1000)) == json.loads(mooncake(0)) | {"hash_ids": [1 << 40]}
    os.close(reader)
    assert pipe.is_fifo()
    told = capsys.readouterr()
    assert (told.out, "1 sessions" in told.err) == ("", True)  # standard output may be where the trace went


def test_sorting_keeps_no_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of short sessions too, of which Python needs more than their bytes."""
    memory = 1 << 19
    monkeypatch.setattr(module, "SORTED_IN_MEMORY", memory)
    source = tmp_path / "source.jsonl"
    source.write_text("".join(mooncake(-time % 7) for time in range(7_000)))
    trace = open_trace(source)
    tracemalloc.start()
    try:
        convert(trace, tmp_path / "target.jsonl", Format.MOONCAKE, Changes(sort=True))
        assert tracemalloc.get_traced_memory()[1] < 1.5 * memory
    finally:
        tracemalloc.stop()


def test_sort_needs_times(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonl"
    source.write_text('{"prompt": "x"}\n')
    with pytest.raises(TraceError, match="--sort: session 1 has no time"):
        convert(open_trace(source), tmp_path / "target", Format.VLLM, Changes(sort=True))


def test_the_first_sessions_scaled(tmp_path: Path) -> None:
    target = tmp_path / "target.jsonl"
    trace = open_trace(DATA / "mooncake_excerpt.jsonl")
    converted = convert(trace, target, Format.MOONCAKE, Changes(length_scale=1 / 32, sessions=7))
    assert converted.sessions == 7
    assert converted.remarks == ("the file does not say its block size: read it with --block-size 16",)
    back = list(open_trace(target, block_size=16).sessions())
    assert [one.turns[0].hash_ids for one in back] == [one.turns[0].hash_ids for one in list(trace.sessions())[:7]]


def test_the_file_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "source.jsonl", tmp_path / "target.jsonl"
    source.write_text(mooncake(0) * 10 + "{bad")
    target.write_text("before")
    with pytest.raises(TraceError, match="line 11"):
        convert(open_trace(source), target, Format.CHAT, Changes())
    assert target.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.jsonl", "target.jsonl"]
    source.write_text(mooncake(0) * 10)
    convert(open_trace(source), source, Format.CHAT, Changes())  # in its own place
    assert open_trace(source).format is Format.CHAT


def test_packed_files_are_the_same_each_time(tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"
    for target in (one, two):
        convert(open_trace(CHAT500), target, Format.CHAT, Changes(sessions=3))
    assert one.read_bytes() == two.read_bytes()
    assert gzip.decompress(one.read_bytes()).startswith(b'{"format":"paged-top-chat"')


# The command


def test_the_command_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "burst.csv", tmp_path / "out.csv"
    rows = "1,GPT-4,5,0,5,x\n2,GPT-4,5,1,6,x\nbad\n3,GPT-4,5,1,6,x\n"
    source.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + rows)
    assert main(["convert", str(source), str(target), "--to", "azure"]) == 2
    assert f"loadgen: {source}: line 4: must have 6 cells" in capsys.readouterr().err
    assert main(["convert", str(source), str(target), "--to", "azure", "--skip-bad"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [
        f"{target}: azure, from 2 sessions with 2 turns",
        "  bad lines skipped: 1",
        "    line 4: must have 6 cells, one for each column, got 1",
        f"  left out of {source}: 1 requests that failed (0 response tokens)",
        "  not kept: where the trace is from (1)",
        "  not kept: names of sessions (2)",
        "  not kept: labels (2)",
        "  note: the trace does not say its date: the file begins with 1970",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing", "out", "--to", "azure"], "loadgen: missing: cannot be read: No such file or directory"),
        ([str(CHAT500), "nowhere/out", "--to", "vllm"], "loadgen: OUT nowhere/out: cannot be written: No such file"),
        (
            [str(CHAT500), "out", "--to", "vllm", "--block-size", "16"],
            "--block-size: the format paged-top-chat",
        ),
        (
            [str(CHAT500), "out", "--to", "vllm", "--from", "azure"],
            "(the first line must be the names of",
        ),
        (
            [str(DATA / "mooncake_excerpt.jsonl"), "out", "--to", "mooncake", "--length-scale", "0.3"],
            "must become whole",
        ),
    ],
)
def test_bad_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_unknown_options(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--to", "csv"], ["--to", "azure", "--time-unit", "h"], ["--to", "azure", "--from", "x"]):
        with pytest.raises(SystemExit) as caught:
            main(["convert", "in", "out", *arguments])
        assert caught.value.code == 2
    assert "expected one of s, ms, us, got 'h'" in capsys.readouterr().err


def test_the_options_name_all_formats_and_units() -> None:
    assert set(options.FORMATS) == set(Format)
    assert set(options.UNITS) == set(TimeUnit)


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "REPORTED_EACH", 0.0)
    trace = open_trace(CHAT500)
    assert len(list(trace.sessions())) == 500
    progress = command._Progress(trace)
    progress(500)
    assert capsys.readouterr().err == ""  # it is none
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    command._Progress(trace)(500)
    assert "100% read, 500 sessions written" in capsys.readouterr().err
