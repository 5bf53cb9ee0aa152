"""`loadgen report` and `loadgen diff` as a user has them: files, exit codes, and what is said of bad input."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from sample_runs import CLIENT, completed, failed, header, write_run

from loadgen.cli import main
from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.run_file import RunEnd

END = RunEnd(at=6.0, client=CLIENT)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("LOADGEN_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def a(tmp_path: Path) -> str:
    write_run(tmp_path / "a.jsonl", [completed(), completed(turn=1, sent=3.0)], END)
    return str(tmp_path / "a.jsonl")


@pytest.fixture
def b(tmp_path: Path) -> str:
    records = [completed(chunks=(1.6, 1.7, 1.9)), failed()]
    write_run(tmp_path / "b.jsonl", records, END, header(1, 2, speed=2.0))
    return str(tmp_path / "b.jsonl")


def loadgen(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit:
        code = int(exit.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_report_and_every_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, a: str) -> None:
    names = {flag: tmp_path / f"out{flag}" for flag in ("--html", "--csv", "--json", "--vllm-json")}
    options = [text for flag, path in names.items() for text in (flag, path)]
    code, out, err = loadgen(capsys, "report", a, "--slo", "ttft=1s", *options)
    assert (code, err) == (0, "")
    assert "turns completed" in out
    assert "TTFT (s) by the time of sending" in out
    assert names["--html"].read_text().startswith("<!doctype html>")
    with names["--csv"].open(newline="") as file:
        assert len(list(csv.reader(file))) == 3
    assert json.loads(names["--json"].read_text())["summary"]["slo_attainment"] == 1.0
    assert json.loads(names["--vllm-json"].read_text())["completed"] == 2


def test_several_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, a: str, b: str) -> None:
    kept = tmp_path / "kept.json"
    code, out, _ = loadgen(capsys, "report", a, b, "--json", kept)
    assert code == 0
    assert re.search(r"a\.jsonl +b\.jsonl", out)
    assert [run["summary"]["failed"] for run in json.loads(kept.read_text())["runs"]] == [0, 1]
    code, out, _ = loadgen(capsys, "report", a, b, "--merge", "--no-plots", "--json", kept)
    assert code == 0
    assert "they differ in speed" in out
    assert json.loads(kept.read_text())["summary"]["completed"] == 3
    (tmp_path / "other").mkdir()
    other = shutil.copy(a, tmp_path / "other")
    assert str(tmp_path) in loadgen(capsys, "report", a, other)[1]  # two of the same name are told apart


def test_many_files_fit_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, a: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [shutil.copy(a, tmp_path / f"run-of-a-longer-name-{number}.jsonl") for number in range(5)]
    code, out, _ = loadgen(capsys, "report", *copies)
    assert code == 0
    assert "…" not in out
    assert all(out.count(Path(path).name) == 1 for path in copies)


def test_what_changed(capsys: pytest.CaptureFixture[str], tmp_path: Path, a: str, b: str) -> None:
    kept = tmp_path / "diff.json"
    code, out, err = loadgen(capsys, "diff", a, b, "--all", "--json", kept)
    assert (code, err) == (0, "")
    assert re.search(r"ttft\.min +500\.0 +600\.0 +\+100\.0 +\+20\.0%", out)
    assert "A and B were asked for other things: speed." in out
    assert "B: First 'HTTP 400'" in out
    assert json.loads(kept.read_text())["failed"] is False


def test_a_condition_that_holds_is_exit_code_1(capsys: pytest.CaptureFixture[str], a: str, b: str) -> None:
    conditions = ("--fail-if", "ttft.min > +10%", "--fail-if", "failed > 5")
    code, out, _ = loadgen(capsys, "diff", a, b, *conditions)
    assert code == 1
    assert out.endswith("FAIL  ttft.min > +10%   (500.0 to 600.0, +20.0%)\npass  failed > 5   (1)\n")
    assert loadgen(capsys, "diff", a, a, *conditions)[0] == 0


def test_nothing_is_resumed_of_a_run_that_is_complete(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Else what was seen around its requests would be replaced by nothing."""
    path = tmp_path / "whole.jsonl"
    whole = write_run(path, [completed(), failed()], END, header(1, 2))
    kept = path.read_bytes()
    code, out, err = loadgen(capsys, "resume", path)
    assert (whole.complete, code, out) == (True, 2, "")
    assert err == f"loadgen: {path}: is complete, nothing is left to play; `loadgen report {path}` tells of it\n"
    assert path.read_bytes() == kept


@pytest.mark.parametrize(
    ("records", "end", "turns"),
    [
        ([completed(), completed(turn=1, outcome=Outcome.INTERRUPTED)], END, 2),
        ([completed()], END, 2),
        ([completed(), completed(turn=1)], None, 2),
    ],
)
def test_a_run_that_is_not_complete(
    tmp_path: Path, records: list[RequestRecord], end: RunEnd | None, turns: int
) -> None:
    assert not write_run(tmp_path / "part.jsonl", records, end, header(1, turns)).complete


def test_against_figures_that_were_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path, a: str, b: str) -> None:
    kept = tmp_path / "kept.json"
    loadgen(capsys, "report", a, "--json", kept)
    code, out, _ = loadgen(capsys, "diff", kept, b, "--all", "--fail-if", "failed > 0")
    assert code == 1
    assert re.search(r"ttft\.min +500\.0 +600\.0", out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report"], "the following arguments are required: FILE"),
        (["report", "{folder}/none"], "{folder}/none: cannot be read: No such file or directory"),
        (["report", "{a}", "--slo", "fast"], "--slo: expected limits such as ttft=500ms,tpot=50ms,e2e=10s, got 'fast'"),
        (["report", "{a}", "--warmup", "x"], "--warmup: expected a time or a number of requests, like 10s or 50"),
        (["report", "{a}", "--cooldown", "-1s"], "--cooldown: expected"),
        (["report", "{a}", "{b}", "--vllm-json", "{folder}/x"], "--vllm-json: it holds one run; name one FILE"),
        (["report", "{a}", "--html", "{folder}"], "--html {folder}: is a folder; name a file"),
        (["report", "{a}", "--csv", "{a}"], "--csv {a}: is one of the files to read"),
        (["report", "{a}", "--json", "{folder}/no/x"], "--json {folder}/no/x: there is no folder {folder}/no"),
        (["diff", "{a}"], "the following arguments are required: B"),
        (["diff", "{a}", "{folder}/none"], "{folder}/none: cannot be read"),
        (["diff", "{a}", "{b}", "--fail-if", "slow"], "--fail-if: expected FIGURE, one of >= <= > <, and a number"),
        (["diff", "{a}", "{b}", "--fail-if", "goodput < 1"], "--fail-if 'goodput < 1': neither run has goodput"),
        (["diff", "{a}", "{b}", "--fail-if", "ttft.p99 > 1s"], "B has no ttft.p99, so it cannot be told"),
        (["diff", "{a}", "{b}", "--json", "{folder}"], "--json {folder}: is a folder"),
    ],
)
def test_bad_input_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, a: str, b: str, arguments: list[str], says: str
) -> None:
    names = {"a": a, "b": b, "folder": str(tmp_path)}
    code, out, err = loadgen(capsys, *(argument.format(**names) for argument in arguments))
    assert code == 2
    assert says.format(**names) in err
    assert out == ""


def test_a_bad_line_names_line_and_field(capsys: pytest.CaptureFixture[str], tmp_path: Path, a: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(Path(a).read_text().replace('"turn":1', '"turn":"one"'))
    code, _, err = loadgen(capsys, "report", path, "--html", tmp_path / "x.html")
    assert code == 2
    assert err == f"loadgen: {path}: line 3: turn: Expected int, got str\n"
    assert not (tmp_path / "x.html").exists()


def test_a_killed_run_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    write_run(path, [completed(turn=turn) for turn in range(3)])
    path.write_bytes(path.read_bytes()[:-30])
    code, out, _ = loadgen(capsys, "report", path)
    assert code == 0
    assert out.startswith("Warning: The file has no end: loadgen was killed, or still runs.")
    assert "The last line of the file was cut" in out
    assert "2 of 3" in out


def test_a_client_that_was_the_bottleneck_is_told_on_both_sides(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, a: str
) -> None:
    slow = msgspec.structs.replace(END, client=CLIENT | {"client_is_bottleneck": True})
    write_run(tmp_path / "slow.jsonl", [completed()], slow)
    _, out, _ = loadgen(capsys, "diff", a, tmp_path / "slow.jsonl")
    assert out.startswith("B: Warning: loadgen itself was slow")
