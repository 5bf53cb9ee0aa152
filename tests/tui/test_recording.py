"""A recording is read back exactly, whatever became of the file, and what is wrong with one is said in words."""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib

import msgspec
import pytest

from engine.protocol import Gap, Record, Snapshot, encode
from tui import recorder as recorder_module
from tui import recording
from tui.fold import EngineFold
from tui.recorder import Recorder
from tui.recording import RecordingError, read_heads, read_recording


@pytest.fixture(scope="module")
def items(simulated):
    """A snapshot and 60 records."""
    return list(simulated.simulate(60, blocks=700, max_model_len=2048, rate=6.0))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(recorder_module, "BATCH_SECONDS", 0.01)


def lines_of(items):
    return [encode(item) + b"\n" for item in items]


def state_after(items, count):
    fold = EngineFold.from_snapshot(items[0])
    for record in items[1 : count + 1]:
        fold.apply(record)
    return fold.to_snapshot()


def take_all(reading, found):
    """Into `found`, which keeps what came before an error."""
    found.extend(reading)


def written(path, data):
    path.write_bytes(data)
    return path


def record_all(path, items):
    recorder = Recorder(path)
    recorder.begin(items[0])
    for record in items[1:]:
        recorder.take(record)
    recorder.close()
    return recorder


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_what_was_recorded_is_read_again(items, tmp_path, name):
    recorder = record_all(tmp_path / name, items)
    assert recorder.error == ""
    assert recorder.records == 60
    assert recorder.bytes == (tmp_path / name).stat().st_size
    reading = read_recording(tmp_path / name)
    assert list(reading) == items
    assert reading.note == ""
    raw = (tmp_path / name).read_bytes()
    assert (gzip.decompress(raw) if name.endswith("gz") else raw) == b"".join(lines_of(items))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_gap_and_its_snapshot_let_a_reader_go_on(items, tmp_path, name):
    recorder = Recorder(tmp_path / name)
    recorder.begin(items[0])
    for record in items[1:11]:
        recorder.take(record)
    after = state_after(items, 30)
    recorder.gap(11, 30, after)
    for record in items[31:]:
        recorder.take(record)
    recorder.close()
    assert recorder.records == 40
    assert list(read_recording(tmp_path / name)) == [*items[:11], Gap(11, 30), after, *items[31:]]


def test_nothing_is_overwritten(items, tmp_path):
    path = written(tmp_path / "kept.jsonl", b"mine")
    with pytest.raises(RecordingError, match=r"kept\.jsonl exists already, and a recording overwrites nothing"):
        Recorder(path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(RecordingError, match="cannot be made: No such file or directory"):
        Recorder(tmp_path / "nowhere" / "a.jsonl")


def wait_for(condition):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come")


def test_a_folder_that_vanishes_ends_the_recording_with_words(items, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    recorder = Recorder(folder / "a.jsonl")
    recorder.begin(items[0])
    wait_for(lambda: recorder.bytes)
    shutil.rmtree(folder)
    wait_for(lambda: recorder.error)
    assert "the file was deleted" in recorder.error
    recorder.take(items[1])  # still no harm
    recorder.close()


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_full_disk_ends_the_recording_with_words_and_leaves_a_readable_file(items, tmp_path, name):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    whole = sum(map(len, lines_of(items)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole // (2 if name == "a.jsonl" else 20), limits[1]))
    try:
        recorder = Recorder(tmp_path / name)
        recorder.begin(items[0])
        for record in items[1:]:
            recorder.take(record)
        wait_for(lambda: recorder.error)
        recorder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    reading = read_recording(tmp_path / name)
    found = list(reading)
    assert 1 < len(found) < len(items)
    assert found == items[: len(found)]
    assert reading.note == ""  # whole lines, and the gzip member has its end
    size = (tmp_path / name).stat().st_size
    assert (recorder.records, recorder.bytes) == (len(found) - 1, size)
    assert f"File too large; the recording has ended, {len(found) - 1} records, " in recorder.error


@pytest.fixture
def tiny_disk(tmp_path):
    """A folder on a file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_on_a_disk_that_is_full_what_was_written_can_be_played(items, tiny_disk, name):
    (tiny_disk / "filler").write_bytes(b"x" * (56 if name.endswith("gz") else 16) * 1024)
    recorder = record_all(tiny_disk / name, items)
    found = list(read_recording(tiny_disk / name))
    assert 1 < len(found) < len(items)
    assert found == items[: len(found)]
    assert f"No space left on device; the recording has ended, {len(found) - 1} records, " in recorder.error


def test_where_nothing_can_be_written_nothing_is_said_to_be(items, tiny_disk):
    (tiny_disk / "filler").write_bytes(b"x" * 64 * 1024)
    recorder = record_all(tiny_disk / "a.jsonl", items)
    assert "No space left on device; the recording has ended, nothing can be played" in recorder.error
    with pytest.raises(RecordingError, match="is empty"):
        list(read_recording(tiny_disk / "a.jsonl"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_an_engine_that_was_started_again_goes_on_with_a_snapshot(items, tmp_path, name):
    engine = items[0].engine
    again = msgspec.structs.replace(engine, restarts=1, started=items[20].time + 1.0)
    second = msgspec.structs.replace(items[0], engine=again, time=again.started)
    later = [msgspec.structs.replace(item, time=item.time + again.started) for item in items[1:]]
    recorder = Recorder(tmp_path / name)
    recorder.begin(items[0])
    for record in items[1:21]:
        recorder.take(record)
    recorder.begin(second)
    for record in later:
        recorder.take(record)
    recorder.close()
    assert list(read_recording(tmp_path / name)) == [*items[:21], second, *later]


def test_a_disk_that_hangs_is_told_and_memory_stays_bounded(items, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_module, "BATCH_SECONDS", 3600.0)
    monkeypatch.setattr(recorder_module, "MAX_WAITING", 20)
    recorder = Recorder(tmp_path / "a.jsonl")
    for record in items[1:41]:
        recorder.take(record)
    assert "the disk is too slow: 20 records wait" in recorder.error
    recorder.close()


def test_a_killed_recorder_leaves_what_it_had_written(items, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    source = written(tmp_path / "source.jsonl", b"".join(lines_of(items)))
    program = (
        "import sys, time; from pathlib import Path; from tui import recorder, recording\n"
        "first, *records = recording.read_recording(Path(sys.argv[1]))\n"
        "writer = recorder.Recorder(Path(sys.argv[2]))\n"
        "writer.begin(first)\n"
        "for record in records: writer.take(record)\n"
        "print('taken', flush=True)\n"
        "while writer.records < 60: time.sleep(0.01)\n"
        "print('written', flush=True); time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, source, path], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"taken\n"
    assert child.stdout.readline() == b"written\n"
    child.kill()
    child.wait()
    child.stdout.close()
    reading = read_recording(path)
    assert list(reading) == items
    assert reading.note == "truncated at line 62"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_truncated_tail_is_read_up_to_the_cut(items, tmp_path, packed, kept):
    data = b"".join(lines_of(items))
    data = zlib.compress(data, wbits=31) if packed else data
    reading = read_recording(written(tmp_path / "a.jsonl", data[: int(len(data) * kept)]))
    found = list(reading)
    assert 0 < len(found) < len(items)
    assert found == items[: len(found)]
    assert reading.note == f"truncated at line {len(found) + 1}"


def test_a_last_line_without_its_end_is_whole(items, tmp_path):
    reading = read_recording(written(tmp_path / "a.jsonl", b"".join(lines_of(items))[:-1]))
    assert list(reading) == items
    assert reading.note == ""


def test_damaged_gzip_is_read_up_to_the_damage(items, tmp_path):
    data = bytearray(zlib.compress(b"".join(lines_of(items)), wbits=31))
    data[-8] ^= 1  # of the checksum
    reading = read_recording(written(tmp_path / "a.jsonl.gz", bytes(data)))
    found = list(reading)
    assert len(found) > 1
    assert found == items[: len(found)]
    assert reading.note.startswith("damaged (")
    assert reading.note.endswith(f"at line {len(found) + 1}")


@pytest.mark.parametrize("packed", [False, True])
def test_the_name_does_not_say_what_is_inside(items, tmp_path, packed):
    data = b"".join(lines_of(items))
    path = tmp_path / ("a.jsonl" if packed else "a.jsonl.gz")
    assert list(read_recording(written(path, zlib.compress(data, wbits=31) if packed else data))) == items


def test_gzip_in_several_members_with_padding(items, tmp_path):
    lines = lines_of(items)
    data = gzip.compress(b"".join(lines[:20])) + gzip.compress(b"".join(lines[20:])) + bytes(512)
    reading = read_recording(written(tmp_path / "a", data))
    assert list(reading) == items
    assert reading.note == ""


def test_windows_line_ends_blank_lines_and_a_byte_order_mark(items, tmp_path):
    data = b"\xef\xbb\xbf" + b"\r\n\r\n".join(map(encode, items)) + b"\r\n \r\n"
    assert list(read_recording(written(tmp_path / "a", data))) == items


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "a.jsonl is empty"),
        (b"\n\r\n", "a.jsonl is empty"),
        (b"PK\x03\x04zip", r"is not a recording: it begins with 'PK\\x03\\x04zip'"),
        (b"hello\nworld\n", "is not a recording: it begins with 'hello"),
        (b'{"messages": []}\n', 'is not a recording: line 1 is \'{"messages": .*missing required field'),
        (b'{"messages": []}', "is not a recording: line 1 is"),
        (b"{nonsense\n", "is not a recording: line 1 is '{nonsense'"),
        (b'{"type":"snapshot","seq":0,', "a.jsonl is truncated at line 1"),
        (b'{"type":"gap","first":1,"last":2}\n', "line 1 is a gap; a recording begins with a snapshot"),
        (gzip.compress(b"", mtime=0)[:12], "a.jsonl is truncated at line 1"),
        (gzip.compress(b"", mtime=0), "a.jsonl is empty"),
        (b"\x1f\x8bnot really", r"a.jsonl is damaged \(.*\) at line 1"),
    ],
)
def test_what_is_no_recording_is_told_what_it_is(tmp_path, data, words):
    with pytest.raises(RecordingError, match=words):
        list(read_recording(written(tmp_path / "a.jsonl", data)))


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(RecordingError, match="cannot be read: Is a directory"):
        read_recording(tmp_path)
    with pytest.raises(RecordingError, match="cannot be read: No such file"):
        read_recording(tmp_path / "none")


def test_a_recording_begins_with_a_snapshot(items, tmp_path):
    with pytest.raises(RecordingError, match="line 1 is a step record"):
        list(read_recording(written(tmp_path / "a", b"".join(lines_of(items[1:])))))


def test_a_wrong_line_in_the_middle_is_named(items, tmp_path):
    lines = lines_of(items)
    lines[30] = lines[30].replace(b'"seq":30', b'"seq":"thirty"')
    found = []
    with pytest.raises(RecordingError, match=r"a: line 31 does not decode \(Expected `int`, got `str` - at `\$.seq`\)"):
        take_all(read_recording(written(tmp_path / "a", b"".join(lines))), found)
    assert found == items[:30]
    lines[30] = lines[30][:50] + b"\n"
    with pytest.raises(RecordingError, match="line 31 does not decode"):
        list(read_recording(written(tmp_path / "b", b"".join(lines))))


@pytest.mark.parametrize(("protocol", "age"), [(recording.PROTOCOL_VERSION + 1, "a newer"), (1, "an older")])
def test_another_version_is_told_even_where_its_records_look_otherwise(items, tmp_path, protocol, age):
    words = f"recorded by {age} version: protocol {protocol}, this paged-top knows {recording.PROTOCOL_VERSION}"
    engine = msgspec.structs.replace(items[0].engine, protocol=protocol)
    first = msgspec.structs.replace(items[0], engine=engine)
    with pytest.raises(RecordingError, match=words):
        list(read_recording(written(tmp_path / "a", b"".join(lines_of([first, *items[1:]])))))
    strange = msgspec.to_builtins(first) | {"type": "snapshot", "pool": "elsewhere"}
    with pytest.raises(RecordingError, match=words):
        list(read_recording(written(tmp_path / "b", encode(strange) + b"\n")))


def test_missing_records_are_a_gap_up_to_the_next_snapshot(items, tmp_path):
    after = state_after(items, 40)
    kept = [*items[:11], *items[21:41], after, *items[41:]]
    assert list(read_recording(written(tmp_path / "a", b"".join(lines_of(kept))))) == [
        *items[:11],
        Gap(11, 40),
        after,
        *items[41:],
    ]


def test_missing_records_with_no_snapshot_after_them_are_a_gap_to_the_end(items, tmp_path):
    kept = [*items[:11], *items[21:]]
    assert list(read_recording(written(tmp_path / "a", b"".join(lines_of(kept))))) == [*items[:11], Gap(11, 60)]


def test_records_told_twice_are_passed_over_and_those_out_of_order_are_a_gap(items, tmp_path):
    twice = [*items[:11], items[5], items[10], *items[11:]]
    assert list(read_recording(written(tmp_path / "a", b"".join(lines_of(twice))))) == items
    swapped = [*items[:11], items[12], items[11], *items[13:]]
    assert list(read_recording(written(tmp_path / "b", b"".join(lines_of(swapped))))) == [*items[:11], Gap(11, 60)]


def test_a_snapshot_of_what_is_known_is_passed_over(items, tmp_path):
    kept = [*items[:31], state_after(items, 30), *items[31:]]
    assert list(read_recording(written(tmp_path / "a", b"".join(lines_of(kept))))) == items


def test_another_recording_behind_the_first_is_not_mixed_in(items, tmp_path):
    other = msgspec.structs.replace(items[0], engine=msgspec.structs.replace(items[0].engine, started=5.0))
    for index, second in enumerate(([other, *items[1:]], items)):
        path, found = tmp_path / str(index), []
        written(path, b"".join(lines_of([*items, *second])))
        with pytest.raises(RecordingError, match="another recording begins at line 62"):
            take_all(read_recording(path), found)
        assert found == items


def test_heads_are_the_same_items(items, tmp_path):
    after = state_after(items, 40)
    path = written(tmp_path / "a", b"".join(lines_of([*items[:11], *items[21:41], after, *items[41:]])))
    whole = [(item.seq if isinstance(item, Snapshot | Record) else item) for item in read_recording(path)]
    assert [getattr(item, "seq", item) for item in read_heads(path)] == whole


def test_a_long_line_is_refused_and_a_long_file_is_read_line_by_line(items, tmp_path, monkeypatch):
    path = written(tmp_path / "a", b"".join(lines_of(items)))
    reading = read_recording(path)
    next(reading)
    assert reading._lines.tell() <= len(lines_of(items)[0])
    monkeypatch.setattr(recording, "MAX_LINE", 1000)
    with pytest.raises(RecordingError, match="is longer than 1,000 bytes"):
        list(read_recording(path))


def test_a_pipe_is_read_once_through(items, tmp_path):
    read, write = os.pipe()
    with os.fdopen(write, "wb") as file:
        file.write(b"".join(lines_of(items[:5])))  # less than a pipe holds
    with os.fdopen(read, "rb"):
        assert list(read_recording(recording.Path(f"/dev/fd/{read}"))) == items[:5]


def test_a_disk_that_is_too_slow_is_not_waited_for(items, tmp_path, monkeypatch):
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(recorder, data):
        hangs.set()
        goes_on.wait()

    monkeypatch.setattr(recorder_module, "MAX_WAITING", 3)
    monkeypatch.setattr(Recorder, "_send", hang)
    recorder = Recorder(tmp_path / "slow.jsonl")
    recorder.begin(items[0])
    hangs.wait()
    for record in items[1:6]:
        recorder.take(record)
    assert "the disk is too slow" in recorder.error
    recorder.close()
    assert recorder._thread.is_alive()  # it was not joined: the disk still hangs
    goes_on.set()
    recorder._thread.join()
