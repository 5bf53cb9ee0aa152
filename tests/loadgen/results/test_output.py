"""A file is written whole or not at all, and a place that cannot be written is told with its option."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from loadgen.results.output import OutputError, check_writable, temporary_folder, whole_file, write_json


def test_a_document_is_written_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    check_writable("--json", path)
    assert list(tmp_path.iterdir()) == []
    write_json("--json", path, {"a": 1})
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file("--csv", path) as file:
        file.write(bytes([1 // 0]))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_as_open_as_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.touch(0o600)
    with whole_file("--csv", path) as file:
        file.write(b"new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_writable("--json", pipe)
    write_json("--json", pipe, {"a": 1})
    assert json.loads(os.read(reader, 100)) == {"a": 1}
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "is a folder; name a file"),
        ("no/x.json", "there is no folder {folder}/no"),
        ("a" * 255, "cannot be written: File name too long"),
    ],
)
def test_a_place_that_cannot_be_written(tmp_path: Path, path: str, says: str) -> None:
    with pytest.raises(OutputError) as caught:
        check_writable("--html", tmp_path / path)
    assert str(caught.value).startswith(f"--html {tmp_path / path}: ")
    assert says.format(folder=tmp_path) in str(caught.value)


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"--json /proc/x.json: cannot be written"):
        check_writable("--json", Path("/proc/x.json"))
    with (
        pytest.raises(OutputError, match="--csv /dev/full: cannot be written: No space left"),
        whole_file("--csv", Path("/dev/full")) as file,
    ):
        file.write(b"x" * 100_000)


def test_what_is_read_or_written_already_is_not_written_over(tmp_path: Path) -> None:
    path, link, loop = tmp_path / "a.jsonl", tmp_path / "link", tmp_path / "loop"
    path.touch()
    link.symlink_to(path)
    loop.symlink_to(loop)
    for other in (path, link, tmp_path / "." / "a.jsonl"):
        with pytest.raises(OutputError, match=rf"--json {link}: is one of the files to read"):
            check_writable("--json", link, [loop, other])
        with pytest.raises(OutputError, match=rf"--json {path}: is written for another option"):
            check_writable("--json", path, [tmp_path / "b"], [other])
    with pytest.raises(OutputError, match="is written for another option"):
        check_writable("--json", tmp_path / "new", [], [tmp_path / "new"])
    check_writable("--json", Path("/dev/null"), [], [Path("/dev/null")])


def test_no_room_for_temporary_files_is_told_with_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(OutputError, match=r"none/loadgen-.*: cannot be written: No such file.*; TMPDIR names another"):
        temporary_folder().__enter__()
