"""The screen's costs are measured of the real program, over recordings that the engine's own core made."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from benchmarks import recordings, screen
from benchmarks.recordings import MODEL, USUAL, recording, simulate
from benchmarks.screen import Cost, Found, Start, as_json, environment, rows, table
from benchmarks.terminal import Painted, ScreenError, Terminal
from engine.protocol import Record, Snapshot
from tui.recording import read_recording

SMALL = dataclasses.replace(USUAL, name="small", blocks=300, running=8)
PAINTER = """
import sys, tty, os
tty.setraw(0)
os.write(1, b"\\x1b[?2026$p")
assert os.read(0, 100) == b"\\x1b[?2026;2$y"
columns, lines = os.get_terminal_size(1)
os.write(1, b"\\x1b[?2026h%dx%d the picture\\x1b[?2026l" % (columns, lines))
sys.exit(os.read(0, 1) != b"q")
"""


def test_a_recording_is_of_a_full_batch_and_folds_to_what_the_engine_has(monkeypatch):
    monkeypatch.setattr(recordings, "CHECKED_EVERY", 10)
    first, *records = simulate(SMALL, 20.0)
    assert isinstance(first, Snapshot)
    assert len(records) == 400
    assert records[-1].time - first.time == pytest.approx(20.0)
    assert all(isinstance(record, Record) and len(record.rows) == 8 for record in records)
    assert sum(len(record.left) for record in records) > 8
    assert first.sharing.saved_blocks > 0


def test_a_fold_that_differs_is_not_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(recordings, "CHECKED_EVERY", 10)
    monkeypatch.setattr(recordings.EngineFold, "_advance", lambda self, record: None)
    with pytest.raises(RuntimeError, match="differs from the engine"):
        recording(SMALL, 5.0, lambda text: None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_recording_is_made_once(tmp_path):
    said = []
    path = recording(SMALL, 2.0, said.append, tmp_path)
    made = path.stat().st_mtime_ns
    assert recording(SMALL, 2.0, said.append, tmp_path) == path
    assert path.stat().st_mtime_ns == made
    assert len(said) == 1
    assert recording(SMALL, 3.0, said.append, tmp_path) != path
    reading = read_recording(path)
    assert len(list(reading)) == 41
    assert reading.note == ""


def test_a_frame_is_a_synchronized_update_and_those_right_after_it():
    painted = Painted("the picture")
    end = b"\x1b[?2026l"
    for now, data, frames in (
        (1.0, b"nothing" + end, 1),
        (1.01, b"more of it" + end, 1),
        (1.03, b"the pic", 1),
        (1.1, end, 2),
        (1.2, b"the pict", 2),
        (1.3, b"ure" + end[:4], 2),
        (1.4, end[4:], 3),
        (1.5, end + b"one" + end, 4),
        (1.6, b"no end", 4),
    ):
        painted.take(data, now)
        assert painted.frames == frames
        assert (painted.whole is not None) == (now >= 1.4)
    assert painted.whole == 1.4
    assert painted.bytes == 7 + 10 + 7 + 8 + 11 + 3 + 6 + 5 * 8


def test_the_terminal_is_asked_once_what_it_knows():
    painted = Painted("x")
    assert [painted.take(data, 0.0) for data in (b"\x1b[?20", b"26$p", b"and on", b"and on")] == [
        False,
        True,
        False,
        False,
    ]


def test_a_program_paints_into_a_terminal_of_its_own(tmp_path):
    terminal = Terminal([sys.executable, "-c", PAINTER], "160x48 the picture", environment(tmp_path), tmp_path)
    try:
        assert terminal.wait_for_picture(20.0) > 0.0
        assert terminal.peak_bytes() > 1 << 20
        assert 0.0 <= terminal.cpu_seconds() < 10.0
    finally:
        code = terminal.close()
    assert code == 0
    assert terminal.painted.frames == 1


def test_a_program_that_ends_says_why(tmp_path):
    terminal = Terminal(
        [sys.executable, "-c", "raise SystemExit('no such file')"], "x", environment(tmp_path), tmp_path
    )
    with pytest.raises(ScreenError, match="ended before its picture was whole; the last output was 'no such file'"):
        terminal.wait_for_picture(20.0)
    terminal._process.wait()
    with pytest.raises(ScreenError, match="ended with exit code 1"):
        terminal.cpu_seconds()
    assert terminal.close() == 1


def test_one_that_paints_nothing_is_not_waited_for_for_ever(tmp_path):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    terminal = Terminal(command, "x", environment(tmp_path), tmp_path)
    with pytest.raises(ScreenError, match="no whole picture in 0 s"):
        terminal.wait_for_picture(0.2)
    terminal._process.kill()
    assert terminal.close() < 0


def starts(*seconds):
    return tuple(Start(one, one / 2) for one in seconds)


def test_aims_are_told_beside_what_was_measured():
    good = Cost(60.0, 0.399, 9.96, 1000.0, 1 << 28)
    met = {row.what: row.met for row in rows(Found("million", starts(0.7, 0.8, 2.0), good))}
    assert (met["first picture"], met["of a core"], met["frames"]) == (True, True, True)
    assert met["processor time until then"] is met["peak memory"] is met["written to the terminal"] is None
    bad = Cost(60.0, 0.1, 9.9, 1000.0, 1 << 28)
    met = {row.what: row.met for row in rows(Found("usual", starts(0.9), bad))}
    assert (met["first picture"], met["of a core"], met["frames"]) == (False, False, None)
    assert [row.what for row in rows(Found("tiny engine, --url", starts(0.5)))] == [
        "first picture",
        "processor time until then",
    ]
    assert table([Found("usual", starts(0.9), bad)]).row_count == 6
    found = json.loads(json.dumps(as_json([Found("usual", starts(0.9), bad)], {"cores": 2})))
    assert found["measured"][0]["cost"]["frames"] == 9.9


def test_nothing_of_this_shell_reaches_the_program(monkeypatch, tmp_path):
    for name in ("PAGED_TOP_ASCII", "NO_COLOR", "COLUMNS", "TEXTUAL_DRIVER"):
        monkeypatch.setenv(name, "1")
    found = environment(tmp_path)
    assert not {"PAGED_TOP_ASCII", "NO_COLOR", "COLUMNS", "TEXTUAL_DRIVER"} & set(found)
    assert found["XDG_CONFIG_HOME"] == str(tmp_path)


def test_the_real_program_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(screen, "POOLS", {"small": SMALL})
    monkeypatch.setattr(screen, "recording", lambda *given: recording(*given, tmp_path))
    code = screen.main(["--pool", "both", "--seconds", "1", "--starts", "1", "--json", str(tmp_path / "found.json")])
    assert code == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "found.json").read_text())["measured"][0]
    assert found["name"] == "small"
    assert 0.1 < found["starts"][0]["seconds"] < 60.0
    assert 0.0 < found["cost"]["cpu"] < 2.0
    assert 0.0 < found["cost"]["frames"] <= 50.0
    assert found["cost"]["peak_bytes"] > 10 << 20
    assert MODEL not in capsys.readouterr().out
