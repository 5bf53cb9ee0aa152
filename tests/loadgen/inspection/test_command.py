"""`loadgen inspect` from its command line: files, exit codes, JSON, Ctrl-C."""

from __future__ import annotations

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli import main
from loadgen.inspection import command
from loadgen.inspection.inspecting import Reading
from loadgen.inspection.progress import ReadingProgress
from loadgen.options import EXIT_BAD_INPUT, EXIT_INTERRUPTED

LINE = '{{"timestamp": {}, "input_length": 600, "output_length": 10, "hash_ids": [0, {}]}}\n'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mooncake.jsonl"
    path.write_text("".join(LINE.format(at * 100, at % 50 + 1) for at in range(3000)))
    return path


def told(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_tables_plots_and_json(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["inspect", str(trace), "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "mooncake.jsonl" in text
    assert "requests/s" in text
    document = told(out)
    assert document["interrupted"] is False
    (file,) = document["files"]
    assert (file["format"], file["whole"], file["size"]) == ("mooncake", True, trace.stat().st_size)
    statistics = file["statistics"]
    assert statistics["lengths"]["requests"] == 3000
    assert statistics["lengths"]["inputs"]["percentiles"]["p99"] == 600
    assert "bars" not in statistics["lengths"]["inputs"]
    assert statistics["arrivals"]["rate"] == pytest.approx(10)
    by_size = {hit["block_size"]: hit for hit in statistics["sharing"]["hits"]}
    # Of 600 tokens, 512 are found from the second request on, and 80 more once the second block came.
    assert by_size[16]["found_tokens"] == 2999 * 512 + 2950 * 80
    assert by_size[512]["rate"] == pytest.approx(2999 * 512 / (3000 * 600))
    assert statistics["sharing"]["repeated_blocks"] == pytest.approx((2999 + 2950) / 6000)


def test_several_files_of_several_formats(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_bytes(b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44")
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    out = tmp_path / "out.json"
    files = [str(trace), str(azure), str(packed)]
    assert main(["inspect", *files, "--no-plots", "--json", str(out), "--sessions", "5"]) == 0
    document = told(out)
    assert [file["file"] for file in document["files"]] == files
    assert [file["statistics"]["lengths"]["requests"] for file in document["files"]] == [5, 1, 5]
    assert [file["whole"] for file in document["files"]] == [False, True, False]
    assert "only the first 5 sessions" in capsys.readouterr().out


def test_engine_block_sizes_and_contexts(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ["--engine-block-size", "32, 64", "--contexts", "605,700", "--no-plots"]
    assert main(["inspect", str(trace), "--json", str(out), *options]) == 0
    statistics = told(out)["files"][0]["statistics"]
    assert [hit["block_size"] for hit in statistics["sharing"]["hits"]] == [32, 64, 512]
    assert statistics["lengths"]["over"] == [[605, 3000], [700, 0]]


def test_the_traces_own_block_size(tmp_path: Path) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out.json"
    path.write_text('{"timestamp": 0, "input_length": 30, "output_length": 1, "hash_ids": [1, 2]}\n')
    assert main(["inspect", str(path), "--block-size", "16", "--no-plots", "--json", str(out)]) == 0
    assert told(out)["files"][0]["statistics"]["sharing"]["block_size"] == 16


def test_a_bad_line_ends_it_with_its_number_and_field(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with trace.open("a") as file:
        file.write('{"timestamp": 300000, "input_length": -5, "output_length": 10, "hash_ids": []}\n')
    assert main(["inspect", str(trace)]) == EXIT_BAD_INPUT
    error = capsys.readouterr().err
    assert "line 3001" in error
    assert "input_length" in error


def test_bad_lines_may_be_skipped_and_are_counted(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with trace.open("a") as file:
        file.write('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1]}\nnot JSON\n')
    out = tmp_path / "out.json"
    assert main(["inspect", str(trace), "--skip-bad", "--no-plots", "--json", str(out)]) == 0
    file = told(out)["files"][0]
    assert file["bad_lines"] == 2
    assert file["first_bad_lines"][1].startswith("line 3002: not JSON")
    assert file["statistics"]["lengths"]["requests"] == 3000
    assert "2 bad lines were skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["missing.jsonl"], "missing.jsonl: cannot be read"),
        (["."], "cannot be read"),
        (["{trace}", "--json", "/nowhere/out.json"], "--json /nowhere/out.json: there is no folder"),
        (["{trace}", "--format", "sharegpt"], "line 1"),
    ],
)
def test_what_cannot_be_read_or_written_is_an_error_in_words(
    arguments: list[str], error: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", *[argument.format(trace=trace) for argument in arguments]]) == EXIT_BAD_INPUT
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "error"),
    [
        (["--format", "csv"], "mooncake"),
        (["--engine-block-size", "16,0"], "a whole number above 0, got '0'"),
        (["--engine-block-size", ""], "a whole number above 0, got ''"),
        (["--time-unit", "minutes"], "ms"),
        (["--sessions", "0"], "a whole number above 0"),
    ],
)
def test_options_say_what_is_allowed(option: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "x.jsonl", *option])
    assert ended.value.code == EXIT_BAD_INPUT
    assert error in capsys.readouterr().err


class Interrupting(ReadingProgress):
    """Ctrl-C as soon as anything has been read."""

    presses = 1

    def update(self, reading: Reading) -> None:
        for _ in range(self.presses):
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_tells_what_was_read_so_far(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ReadingProgress", Interrupting)
    before = signal.getsignal(signal.SIGINT)
    out = tmp_path / "out.json"
    assert main(["inspect", str(trace), str(trace), "--json", str(out), "--no-plots"]) == EXIT_INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before
    printed = capsys.readouterr()
    assert "Interrupted: what was read so far, and 1 more file was not read." in printed.err
    assert "1,024" in printed.out
    assert "only the first 1,024 sessions" in printed.out
    document = told(out)
    assert document["interrupted"] is True
    (file,) = document["files"]
    assert file["whole"] is False
    assert file["statistics"]["lengths"]["requests"] == 1024


def test_ctrl_c_again_ends_it_at_once(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ReadingProgress", Interrupting)
    monkeypatch.setattr(Interrupting, "presses", 2)
    assert main(["inspect", str(trace)]) == EXIT_INTERRUPTED
    assert capsys.readouterr().out == ""
