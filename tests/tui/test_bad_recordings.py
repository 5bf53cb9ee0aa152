"""Recordings that cannot be true, or cannot be read to their end: told in words, and never waited for."""

from __future__ import annotations

import gzip

import msgspec
import pytest

from engine.protocol import encode
from tui.look import Look
from tui.once import play_once
from tui.player import Player
from tui.recording import RecordingError, is_of_sources, read_recording
from tui.sources.recording import read_items

NESTED = b'{"type":"step","a":' + b"[" * 100_000
SIZE = (80, 24)


def written(path, *lines):
    data = b"".join(line + b"\n" for line in lines)
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def impossible(snapshot):
    return encode(msgspec.structs.replace(snapshot, engine=msgspec.structs.replace(snapshot.engine, block_size=0)))


def test_a_first_snapshot_that_cannot_be_true_is_told_when_opened(recording, tmp_path):
    path = written(tmp_path / "a.jsonl", impossible(recording[0]), encode(recording[1]))
    with pytest.raises(RecordingError, match=r"its first snapshot cannot be true: .*block_size cannot be 0"):
        Player(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
async def test_a_line_of_brackets_in_brackets_ends_it(recording, tmp_path, capsys, name):
    path = written(tmp_path / name, *map(encode, recording[:10]), NESTED, encode(recording[10]))
    assert await play_once(path, None, False, SIZE, Look()) == 0
    assert "line 11 does not decode" in capsys.readouterr().err


def test_a_file_of_brackets_in_brackets_is_no_recording(tmp_path):
    with pytest.raises(RecordingError, match="line 1"):
        Player(written(tmp_path / "a.jsonl", NESTED))


@pytest.mark.parametrize(("step", "said"), [(None, ""), (20, "step 20 is not in it: this is 9")])
async def test_a_record_that_cannot_be_true_is_told(recording, tmp_path, capsys, step, said):
    wrong = msgspec.structs.replace(recording[10], time=0.0)
    path = written(tmp_path / "a.jsonl", *map(encode, (*recording[:10], wrong, *recording[11:30])))
    assert await play_once(path, step, False, SIZE, Look()) == 0
    told = capsys.readouterr().err
    assert "(time cannot be 0.0) after record 9" in told
    assert said in told


async def test_a_later_snapshot_that_cannot_be_true_is_passed_over(simulated, tmp_path, capsys):
    stream = list(simulated.simulate(60, snapshot_every=20))
    snapshots = [at for at, item in enumerate(stream) if at and not hasattr(item, "rows")]
    first, second = snapshots[0], snapshots[1]
    # Some records are missing before either snapshot.
    lines = [*map(encode, stream[: first - 3]), impossible(stream[first])]
    lines += map(encode, stream[first + 1 : second - 3])
    lines += map(encode, stream[second:])
    path = written(tmp_path / "a.jsonl", *lines)
    assert await play_once(path, None, False, SIZE, Look()) == 0
    assert '"seq": 60' in await totals(path, capsys)


async def totals(path, capsys):
    capsys.readouterr()
    assert await play_once(path, None, True, SIZE, Look()) == 0
    return capsys.readouterr().out


HEAD = b'{"type":"source","source":0,"name":"a","url":"http://127.0.0.1:1"}\n'


@pytest.mark.parametrize("of_sources", [True, False])
@pytest.mark.parametrize("blank", [b"\n" * (1 << 20), b" " * (1 << 20) + b"\n", b"\r\n" * (1 << 19)])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_empty_lines_without_end_are_no_recording(recording, tmp_path, name, blank, of_sources):
    first = HEAD if of_sources else encode(recording[0]) + b"\n"
    reads = read_items if of_sources else read_recording
    for before, items in ((b"", 0), (first, 1)):
        path = written(tmp_path / name, before + blank)
        found = []
        with pytest.raises(RecordingError, match=r"65,536 bytes of empty lines up to line \d"):
            found.extend(reads(path))
        assert len(found) == items
    assert not is_of_sources(written(tmp_path / name, blank))
    some = b"\n" * 60_000
    assert len(list(reads(written(tmp_path / name, some + first + some)))) == 1


@pytest.mark.parametrize("of_sources", [True, False])
def test_a_gzip_file_of_empty_parts_without_end_is_told(recording, tmp_path, of_sources):
    first = HEAD if of_sources else encode(recording[0]) + b"\n"
    reads = read_items if of_sources else read_recording
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(first) + gzip.compress(b"") * 20_000 + gzip.compress(b"never read"))
    items = reads(path)
    assert len(list(items)) == 1
    assert items.note == "damaged (1,000 empty parts) at line 2"
    path.write_bytes((gzip.compress(b"") * 900).join((gzip.compress(first[:9]), gzip.compress(first[9:]), b"")))
    assert len(list(reads(path))) == 1
