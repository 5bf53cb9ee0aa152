"""One event, one line, whatever is in it; and nobody waits for a line to be read."""

import json
import logging
import os
import re
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.log import MAX_LINE, JsonLines, LineHandler, LineWriter, TextLines, say

TEXT, JSON = TextLines(), JsonLines("core")


def record(
    message="it happened", *arguments, level=logging.INFO, error=None, words=True, **fields
) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    logger = logging.getLogger("engine.test")
    extra = {"fields": fields, "words": words}
    return logger.makeRecord(logger.name, level, "", 0, message, arguments, exc_info, extra=extra)


def raised() -> BaseException:
    try:
        try:
            raise KeyError("inner words")
        except KeyError as error:
            raise ValueError("outer words") from error
    except ValueError as error:
        return error


def test_text_is_the_message_and_then_the_fields() -> None:
    assert TEXT.format(record("error: %s", "no such file")) == "paged-engine: error: no such file"
    line = TEXT.format(record("done", event="x", steps=3, seconds=0.5, who="a b", names=["a"], empty="", none=None))
    assert line == 'paged-engine: done steps=3 seconds=0.5 who="a b" names=["a"] empty=""'


def test_json_has_time_level_process_event_and_fields() -> None:
    made = record(
        "it is %d", 3, level=logging.WARNING, event="counted", count=3, ratio=float("nan"), time="not this one"
    )
    made.created = 1_700_000_000.1234
    assert json.loads(JSON.format(made)) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "warning",
        "process": "core",
        "event": "counted",
        "message": "it is 3",
        "count": 3,
        "ratio": "nan",
    }


@settings(max_examples=60)
@given(st.text(), st.text(), st.recursive(st.none() | st.floats() | st.integers() | st.text(), st.lists))
def test_nothing_in_a_message_or_a_field_makes_another_line(message: str, field: str, value) -> None:
    made = record("%s", message, field=field, value=value)
    text, line = TEXT.format(made), JSON.format(made)
    assert text.isprintable()
    assert line.isascii()
    assert line.isprintable()
    told = json.loads(line)
    if max(len(message), len(field)) <= 80:
        assert told["message"].encode() == message.encode("utf-8", "backslashreplace")
        assert told["field"].encode() == field.encode("utf-8", "backslashreplace")


@pytest.mark.parametrize("form", [TEXT, JSON])
@pytest.mark.parametrize("filler", ["x", "é", "\x00", "\U0001f600", "\ud800"])
def test_a_line_is_as_long_as_a_pipe_takes_at_once(form, filler: str) -> None:
    made = record("%s", filler * 100_000, **{f"field{i}": filler * 5000 for i in range(3)}, many=[filler * 9] * 1000)
    assert len(form.format(made).encode("utf-8", "backslashreplace")) < MAX_LINE
    assert filler == "x" or "x" * 100 not in form.format(made)


def test_an_error_is_its_type_its_words_and_its_stack() -> None:
    error = json.loads(JSON.format(record(error=raised())))["error"]
    assert (error["type"], error["message"]) == ("ValueError", "outer words")
    assert error["stack"].count("Traceback (most recent call last):\n") == 2
    assert error["stack"].index("inner words") < error["stack"].index("outer words")
    text = TEXT.format(record(error=raised()))
    assert 'error="ValueError: outer words" Traceback="test_log.py:' in text


def test_an_errors_words_may_be_kept_back() -> None:
    """Of the stack there are lines of source, which have no values in them."""
    for form in (TEXT, JSON):
        line = form.format(record(error=raised(), words=False))
        assert "ValueError" in line
        assert "ValueError: " not in line
        assert "KeyError: " not in line


def read_now(reader: int) -> bytes:
    """What is in a pipe now."""
    return os.read(reader, 1 << 20) if select.select([reader], [], [], 0.01)[0] else b""


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_nobody_waits_for_a_pipe_that_is_not_read_and_what_is_lost_is_counted(pipe) -> None:
    reader, fd = pipe
    total, line = 5000, b"x" * 99 + b"\n"
    writer = LineWriter(fd, lambda count: b"dropped %d\n" % count, max_pending=50_000)
    for _ in range(total):
        writer.put(line)
    writer.flush(0.05)  # in vain
    found = b""
    while found.count(line) + dropped(found) < total:
        found += read_now(reader)
    writer.close()
    assert found.count(line) + dropped(found) == total
    assert 500 <= found.count(line) < 2000  # what may wait, a pipe of 64 KiB, and what went out meanwhile
    assert len(found.splitlines()) == found.count(line) + found.count(b"dropped")


def dropped(found: bytes) -> int:
    return sum(int(count) for count in re.findall(rb"^dropped (\d+)$", found, re.M))


def test_lines_of_many_threads_are_whole_and_all_there(pipe) -> None:
    reader, fd = pipe
    writer = LineWriter(fd, lambda count: b"dropped %d\n" % count)

    def put(name: int) -> None:
        for i in range(100):
            writer.put(b"%d %d\n" % (name, i))

    threads = [threading.Thread(target=put, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.flush(20)
    writer.close()
    found = [line.split() for line in read_now(reader).splitlines()]
    for name in range(8):
        assert [int(i) for who, i in found if int(who) == name] == list(range(100))


@pytest.mark.parametrize("why", ["nobody can read it", "not open for writing"])
def test_what_cannot_be_written_hurts_nobody(why: str) -> None:
    reader, fd = os.pipe()
    os.close(reader)
    if why == "not open for writing":
        os.close(fd)
        fd = os.open(os.devnull, os.O_RDONLY)
    handler = LineHandler(JSON, fd)
    for _ in range(10):
        handler.emit(record())
    handler.writer.flush(20)
    assert handler.writer.num_dropped == 10
    handler.close()
    os.close(fd)


FULL_DISK = """
import os, resource, sys
from engine.log import LineWriter
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))
writer = LineWriter(fd, lambda count: b"dropped %d\\n" % count)
for number in range(5):
    writer.put(b"%d" % number * 19 + b"\\n")
writer.flush(20)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.put(b"after\\n")
writer.flush(20)
"""


def test_a_line_that_a_full_disk_cut_spoils_no_other(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path / "log")], check=True)
    found = (tmp_path / "log").read_text().splitlines()
    assert found == ["0" * 19, "1" * 19, "2" * 10, "after", "dropped 3"]


WHOLE_PROCESS = """
import logging, sys, threading, warnings
from engine import log
log.configure(sys.argv[1], sys.argv[2], "api")
ours, theirs = logging.getLogger("engine.part"), logging.getLogger("library")
for logger in (ours, theirs):
    logger.debug("debug of %s", logger.name)
    logger.warning("warning of %s", logger.name)
ours.info("%d", "no number")
log.say("error: for a person", name="spoken", count=3)
log.milestone("ready", "it serves")
warnings.warn("two\\nlines")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise RuntimeError("the end")
"""


def run(form: str, level: str) -> list[str]:
    command = [sys.executable, "-c", WHOLE_PROCESS, form, level]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_a_process_tells_everything_as_json() -> None:
    lines = [json.loads(line) for line in run("json", "info")]
    assert [line["message"] for line in lines] == [
        "warning of engine.part",
        "warning of library",
        "a line of engine.part could not be made: TypeError",
        "error: for a person",
        "it serves",
        lines[5]["message"],
        "an error that nobody caught",
        "an error that nobody caught",
    ]
    assert "UserWarning: two\nlines" in lines[5]["message"]
    assert {line["process"] for line in lines} == {"api"}
    assert lines[3]["count"] == 3
    assert [line.get("error", {}).get("type") for line in lines[-2:]] == ["ZeroDivisionError", "RuntimeError"]


def test_a_process_tells_a_person_as_text() -> None:
    lines = run("text", "info")
    assert all(line.startswith("paged-engine: ") for line in lines)
    assert "paged-engine: error: for a person" in lines
    assert len(lines) == 7  # whoever started it sees elsewhere that it serves
    assert run("text", "debug")[0] == "paged-engine: debug of engine.part"
    assert not any("debug of library" in line for line in run("text", "debug"))
    assert len(run("text", "error")) == 2


def test_without_a_log_it_is_printed(capsys) -> None:
    say("error: for a person", count=3)
    assert capsys.readouterr().err == "paged-engine: error: for a person\n"
