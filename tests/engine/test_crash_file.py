"""A crash file is a recording, whole or not there, its owner's alone, and one of few; where none can be written the
rest of the end goes on."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from engine.block_pool import IllegalState
from engine.crash_file import KEPT, crash_folder, write_crash_file
from engine.flight_recorder import FlightRecorder
from engine.last_words import LastWords
from engine.messages import Fatal
from engine.protocol import encode
from tests.engine.loops import recorder_of
from tests.engine.mirror import greedy, mirror_core
from tui.recording import read_recording


def recorded(steps: int = 12) -> FlightRecorder:
    core = mirror_core()
    recorder = recorder_of(core, max_bytes=1, max_records=5)
    core.add("a", [1, 2, 3], greedy(40, ignore_eos=True))
    for _ in range(steps):
        record = core.step()[1]
        assert record is not None
        recorder.take(encode(record))
        if recorder.is_full:
            recorder.begin(core.snapshot())
    return recorder


def test_it_is_a_recording_of_the_last_steps(tmp_path: Path) -> None:
    path = write_crash_file(tmp_path / "new" / "folder", recorded().lines())
    reading = read_recording(path)
    assert [item.seq for item in reading] == [5, 6, 7, 8, 9, 10, 11, 12]
    assert reading.note == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.name.endswith(f"-{os.getpid()}.jsonl.gz")
    assert os.listdir(path.parent) == [path.name]


def test_the_newest_ten_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    old = [f"crash-20250101-{hour:02}0000-7.jsonl.gz" for hour in range(14)]
    others = ["notes.txt", "crash-mine.jsonl.gz", "demo.jsonl.gz"]
    left, new = ".crash-20250101-000000-8.jsonl.gz.part", ".crash-20250101-000000-9.jsonl.gz.part"
    for name in (*old, *others, left, new):
        (tmp_path / name).write_bytes(b"x")
    os.utime(tmp_path / left, (0, time.time() - 7200))
    path = write_crash_file(tmp_path, [b"{}"])
    assert set(os.listdir(tmp_path)) == {*old[-KEPT + 1 :], *others, new, path.name}


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_crash_file(tmp_path, [b"{}"])
    assert os.listdir(tmp_path) == []


def test_the_default_folder_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGED_TOP_CACHE", str(tmp_path))
    assert crash_folder(None) == tmp_path / "crashes"
    assert crash_folder("elsewhere") == Path("elsewhere")


def test_the_log_names_the_file_and_how_to_see_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Fatal] = []
    folder = tmp_path / "with space"
    words = LastWords(recorded(), str(folder), told.append)
    words.tell("the books are wrong", IllegalState("wrong"))
    words.tell("another thread says so too")
    (path,) = folder.iterdir()
    assert told == [Fatal("the books are wrong", unusable=False, crash_file=str(path))]
    (line,) = caplog.records
    assert line.getMessage() == f"the books are wrong; the steps before it: paged-top play '{path}'"
    assert (line.levelname, line.exc_info is not None) == ("CRITICAL", True)


def test_where_no_file_can_be_written_the_rest_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    told: list[Fatal] = []
    LastWords(recorded(), str(tmp_path / "file"), told.append).tell("the books are wrong")
    assert told == [Fatal("the books are wrong", unusable=False)]
    no_file, line = caplog.records
    assert no_file.getMessage().startswith("no crash file could be written (--crash-dir): [Errno 17] File exists")
    assert line.getMessage() == "the books are wrong"
