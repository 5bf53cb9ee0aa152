"""A run's file gives back what was written, also when the run was killed and went on, and tells what it cannot read."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import CLIENT, completed, failed, header, write_run

from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.run_file import ResultError, Resumed, RunEnd, RunFile, RunWriter

END = RunEnd(at=5.0, client=CLIENT, moments=((0.5, 16, 4, 2),), notes=("a note",))
RESUMED = Resumed(at=5.0, started_at="2026-01-02T04:00:00+00:00", versions={"loadgen": "0.1.0"})


def interrupted(index: int, turn: int) -> RequestRecord:
    return RequestRecord(session=f"s{index}", index=index, turn=turn, outcome=Outcome.INTERRUPTED, sent=1.0, ended=2.0)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.jsonl", [completed(), failed()], END)
    assert run.header == header(1, 2)
    assert list(run.records()) == [completed(), failed()]
    assert list(run.records()) == [completed(), failed()]  # each pass from the start
    assert (run.end, run.resumed, run.torn) == (END, (), False)


def test_times_are_kept_to_the_microsecond_and_in_order(tmp_path: Path) -> None:
    exact = completed(sent=1 / 3, scheduled=1 / 3, chunks=(1 / 3, 2 / 3), ended=2 / 3)
    (record,) = write_run(tmp_path / "run.jsonl", [exact]).records()
    assert (record.scheduled, record.sent, record.chunks) == (0.333333, 0.333333, (0.333333, 0.666667))


def test_each_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run.jsonl", header()) as writer:
        writer.append(completed())
        run = RunFile.read(tmp_path / "run.jsonl")
        assert list(run.records()) == [completed()]
        assert run.end is None


def test_a_line_that_was_cut_is_told_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_run(path, [completed(turn=0), completed(turn=1)])
    path.write_bytes(path.read_bytes()[:-20])
    run = RunFile.read(path)
    assert run.torn
    assert [record.turn for record in run.records()] == [0]


@given(st.integers(0, 3000))
def test_wherever_a_file_was_cut_what_is_whole_is_read(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "run.jsonl"
    write_run(path, [completed(turn=0), completed(turn=1)], END)
    start, end = path.read_bytes()[:at], path.read_bytes()[at:]
    path.write_bytes(start)
    lines = start.count(b"\n") + end.startswith(b"\n")
    if lines == 0:
        with pytest.raises(ResultError, match=r"is empty|the first line must be the header"):
            RunFile.read(path)
        return
    run = RunFile.read(path)
    assert len(list(run.records())) + (run.end is not None) == lines - 1
    assert run.torn == (not start.endswith(b"\n") and not end.startswith(b"\n"))


def test_a_resumed_run_counts_what_came_last(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_run(path, [completed(0, 0), interrupted(0, 1), completed(1, 0)], END)
    with RunWriter.resume(path, RESUMED) as writer:
        writer.append(completed(0, 0, sent=6.0))
        assert RunFile.read(path).end is None  # the new part has none yet
        writer.append(completed(0, 1, sent=7.0))
        writer.finish(msgspec.structs.replace(END, at=9.0))
    run = RunFile.read(path)
    assert list(run.records()) == [completed(1, 0), completed(0, 0, sent=6.0), completed(0, 1, sent=7.0)]
    assert run.resumed == (RESUMED,)
    assert run.end is not None
    assert [end.at for end in run.ends] == [5.0, 9.0]


def test_a_part_that_was_killed_within_a_session_keeps_no_later_turn_of_the_one_before(tmp_path: Path) -> None:
    """It was an answer to another history."""
    path = tmp_path / "run.jsonl"
    write_run(path, [completed(0, 0), completed(0, 1), interrupted(0, 2), completed(1, 0)], END)
    with RunWriter.resume(path, RESUMED) as writer:
        writer.append(completed(0, 0, sent=6.0))
    run = RunFile.read(path)
    assert list(run.records()) == [completed(1, 0), completed(0, 0, sent=6.0)]
    assert run.final_turns() == {0: 1, 1: 1}


def test_a_run_can_be_resumed_twice(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_run(path, [interrupted(0, 0)])
    for sent in (6.0, 7.0):
        with RunWriter.resume(path, RESUMED) as writer:
            writer.append(completed(0, 0, sent=sent))
    assert list(RunFile.read(path).records()) == [completed(0, 0, sent=7.0)]


@pytest.mark.parametrize("cut", [20, 1])  # within the last line, and its line end alone
def test_resuming_mends_the_last_line(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "run.jsonl"
    write_run(path, [completed(0, 0), completed(1, 0)])
    path.write_bytes(path.read_bytes()[:-cut])
    with RunWriter.resume(path, RESUMED) as writer:
        writer.append(completed(1, 0, sent=3.0))
    run = RunFile.read(path)
    assert not run.torn
    assert list(run.records()) == [completed(0, 0), completed(1, 0, sent=3.0)]


def test_the_turns_that_need_not_be_played_again(tmp_path: Path) -> None:
    not_reached = RequestRecord(session="s2", index=2, turn=1, outcome=Outcome.NOT_REACHED)
    not_sent = RequestRecord(session="s3", index=3, turn=2, outcome=Outcome.NOT_SENT)
    records = [
        completed(0, 0),
        completed(0, 1),
        completed(1, 0),
        interrupted(1, 1),
        completed(2, 0),
        not_reached,
        completed(3, 0),
        failed(3, 1),
        not_sent,  # a failure is a result: it is not played until it succeeds
    ]
    assert write_run(tmp_path / "run.jsonl", records).final_turns() == {0: 2, 3: 3}


def test_a_file_is_overwritten_only_if_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_run(path, [completed()])
    with pytest.raises(ResultError, match="exists; a run's file is not overwritten unless told"):
        RunWriter(path, header())
    RunWriter(path, header(), overwrite=True).close()
    assert list(RunFile.read(path).records()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"no/run.jsonl: cannot be written: No such file"):
        RunWriter(tmp_path / "no" / "run.jsonl", header())
    with (
        pytest.raises(ResultError, match="cannot be written: No space left"),
        RunWriter(Path("/dev/full"), header(), overwrite=True),
    ):
        pass


@pytest.mark.parametrize(
    ("line", "text", "says"),
    [
        (1, "", "is empty; the first line of a run's file is a header"),
        (1, "{", "line 1 (the first line must be the header): not JSON: "),
        (1, '{"kind":"request"}', "line 1 (the first line must be the header): kind: "),
        (1, '{"format": "paged-top-chat", "version": 1}', "line 1 (the first line must be the header): "),
        (3, "[]", "line 3: Expected object, got array"),
        (3, '{"kind":"request","session":"s","index":"x"}', "line 3: index: Expected int, got str"),
        (3, '{"kind":"request","session":"s","index":0,"turn":0,"outcome":"fine"}', "line 3: outcome: Invalid enum"),
        (
            3,
            '{"kind":"request","session":"s","index":0,"turn":0,"outcome":"completed"}',
            "line 3: a completed request has been scheduled, sent and ended",
        ),
        (
            3,
            '{"kind":"request","session":"s","index":-1,"turn":0,"outcome":"completed"}',
            "line 3: index: Expected int",
        ),
        (
            3,
            '{"kind":"request","session":"s","index":0,"turn":0,"outcome":"completed","sent":1e300}',
            "line 3: sent: Expected float <= 1000000000.0",
        ),
        (4, '{"kind":"end","at":-1}', "line 4: at: Expected float >= 0.0"),
        (3, '{"kind":"other"}', "line 3: kind: Invalid value 'other'"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: int, text: str, says: str) -> None:
    path = tmp_path / "run.jsonl"
    write_run(path, [completed(turn=0), completed(turn=1)], END)
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("".join(f"{line}\n" for line in lines) if any(lines[:1]) else "")
    with pytest.raises(ResultError) as caught:
        list(RunFile.read(path).records())
    assert str(caught.value).startswith(f"{path}: {says}")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("format", "x", 'must be "loadgen-run", got "x"'),
        ("version", 2, "reads version 1, got 2"),
        ("started_at", "x", "Invalid isoformat string: 'x'"),
    ],
)
def test_another_format_or_version_is_refused(tmp_path: Path, field: str, value: object, says: str) -> None:
    head = msgspec.structs.replace(header(), **{field: value})
    with pytest.raises(ResultError, match=f"line 1: {field}: .*{says}"):
        write_run(tmp_path / "run.jsonl", head=head)


def test_a_run_that_goes_on_is_not_resumed_beside(tmp_path: Path) -> None:
    """Two that write into one file would overwrite what each has measured."""
    path, resumed = tmp_path / "run.jsonl", Resumed(at=0.0, started_at="2026-01-01", versions={})
    with RunWriter(path, header()) as writer:
        writer.append(completed(turn=0))
        before = path.read_bytes()
        with pytest.raises(ResultError, match="another loadgen writes into it"):
            RunWriter.resume(path, resumed)
        assert path.read_bytes() == before
    RunWriter.resume(path, resumed).close()


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ResultError, match=f"{path}: is no regular file"):
            RunFile.read(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"none.jsonl: cannot be read: No such file or directory"):
        RunFile.read(tmp_path / "none.jsonl")
    with pytest.raises(ResultError, match="cannot be read: Is a directory"):
        RunFile.read(tmp_path)
