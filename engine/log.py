"""Log lines of both processes, on standard error: as text for a person, or one JSON object each.

An event is one line whatever is in it: control characters are escaped, and a line fits what a pipe takes at once, so
that lines of two processes do not mix. Fields come as `extra={"fields": {...}}`, or through `event`. Nobody waits for
a line to be written: a thread does that, and lines that do not get away are dropped and counted.
No prompt, no answer and no key is ever logged.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

PREFIX = "paged-engine: "
MAX_LINE = select.PIPE_BUF  # bytes: written whole or not at all
MAX_PENDING = 1 << 20  # bytes of lines that wait for their reader
FLUSH_SECONDS = 1.0
_CUTS = (2000, 700, 250, 80, 25)  # characters of one value, tried until the line fits
_OURS = ("engine", "kernels", "__main__")  # loggers; those of libraries tell warnings alone
_MOST_CAUSES = 4
_MOST_ITEMS = 16  # of a list

Process = Literal["api", "core"]
_log = logging.getLogger(__name__)
_milestone_level = logging.DEBUG


def configure(format: Literal["text", "json"], level: str, process: Process = "core") -> None:
    """Send all logging of this process, warnings and uncaught exceptions to standard error, in this format."""
    global _milestone_level
    _milestone_level = logging.INFO if format == "json" else logging.DEBUG
    wanted = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    for handler in tuple(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.addHandler(LineHandler(JsonLines(process) if format == "json" else TextLines(), sys.stderr.fileno()))
    root.setLevel(max(wanted, logging.WARNING))
    for name in _OURS:
        logging.getLogger(name).setLevel(wanted)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda told: _uncaught(told.exc_type, told.exc_value, told.exc_traceback)


def flush(timeout: float = FLUSH_SECONDS) -> None:
    """Wait until all lines are written, but no longer than `timeout` seconds: before an end that runs no exit code."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LineHandler):
            handler.writer.flush(timeout)


def event(
    logger: logging.Logger,
    level: int,
    name: str,
    message: str,
    *,
    error: BaseException | None = None,
    words: bool = True,
    **fields: Any,
) -> None:
    """Log something that has a name. `words`: also the error's own, which may quote what a client sent."""
    logger.log(level, "%s", message, exc_info=error, extra={"fields": {"event": name, **fields}, "words": words})


def milestone(name: str, message: str, **fields: Any) -> None:
    """An event that a person sees anyway, as that it serves: at `info` in JSON, at `debug` in text."""
    event(_log, _milestone_level, name, message, **fields)


def say(message: str, *, level: int = logging.INFO, name: str = "told", **fields: Any) -> None:
    """A line for whoever started the program: as text it is the message alone. Also where no logging is set up, as in
    `paged-engine prepare`."""
    if any(isinstance(handler, LineHandler) for handler in logging.getLogger().handlers):
        _log.log(level, "%s", message, extra={"fields": {"event": name, **fields}, "alone": True})
    else:
        print(f"{PREFIX}{message}", file=sys.stderr, flush=True)


class TextLines(logging.Formatter):
    """`paged-engine: message`, then fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        return _fit(lambda cut: self._line(record, cut))

    def _line(self, record: logging.LogRecord, cut: int) -> str:
        fields = {name: value for name, value in _fields(record).items() if name != "event" and value is not None}
        if getattr(record, "alone", False):
            fields = {}
        if (error := _error(record)) is not None:
            fields["error"] = _words(error, record)
            fields["Traceback"] = " < ".join(
                f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
                for frame in reversed(traceback.extract_tb(error.__traceback__))
            )
        told = [_cut(record.getMessage(), cut), *(f"{name}={_quoted(value, cut)}" for name, value in fields.items())]
        return PREFIX + printable(" ".join(told))


class JsonLines(logging.Formatter):
    """One object: time, level, process, event, message, the event's own fields, and what was raised as `error`."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        return _fit(lambda cut: self._line(record, cut))

    def _line(self, record: logging.LogRecord, cut: int) -> str:
        fields = dict(_fields(record))
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "event": fields.pop("event", "log"),
            "message": record.getMessage(),
        }
        told |= {name: value for name, value in fields.items() if name not in told}
        if (error := _error(record)) is not None:
            words = {"message": str(error)} if _tells_words(record) else {}
            told["error"] = {"type": type(error).__qualname__, **words, "stack": _stack(error, record)}
        # Of what it leaves as it is, only DEL is no printable ASCII.
        return json.dumps(_plain(told, cut), ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")


class LineHandler(logging.Handler):
    """Hands lines to a writer of its own. What cannot be formatted is told as such, and never raises."""

    def __init__(self, formatter: logging.Formatter, fd: int) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.writer = LineWriter(fd, self._dropped)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # of arguments that do not fit their message, or a field whose repr raises
            line = self.format(_record(f"a line of {record.name} could not be made: {type(error).__qualname__}"))
        self.writer.put(_encoded(line))

    def flush(self) -> None:
        self.writer.flush(FLUSH_SECONDS)

    def close(self) -> None:
        self.writer.close()
        super().close()

    def _dropped(self, count: int) -> bytes:
        return _encoded(
            self.format(_record(f"{count:,} log lines were dropped: they were not read", "log_dropped", count=count))
        )


class LineWriter:
    """Writes lines to a file descriptor from a thread of its own, in order; `put` never waits for a reader.

    More than `max_pending` bytes do not wait: further lines are dropped, and `dropped(count)` makes a line of that.
    """

    def __init__(self, fd: int, dropped: Callable[[int], bytes], max_pending: int = MAX_PENDING) -> None:
        self._fd = fd
        self._line_of_dropped = dropped
        self._max_pending = max_pending
        self._pending: deque[bytes] = deque()
        self._size = 0
        self.num_dropped = 0
        self._is_writing = False
        self._is_cut = False  # the last line was not written to its end
        self._closed = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        with self._news:
            if self._size + len(line) > self._max_pending or self._closed:
                self.num_dropped += 1
                return
            self._pending.append(line)
            self._size += len(line)
            self._news.notify_all()

    def flush(self, timeout: float) -> None:
        """Wait until all is written, but at most `timeout` seconds."""
        with self._news:
            self._news.wait_for(lambda: not self._pending and not self._is_writing, timeout)

    def close(self) -> None:
        """Take no more; what waits is written, if there is time."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    def _run(self) -> None:
        while True:
            with self._news:
                self._is_writing = False
                self._news.notify_all()
                self._news.wait_for(lambda: self._pending or self._closed)
                if not self._pending:
                    return
                line = self._pending.popleft()
                self._size -= len(line)
                self._is_writing = True
            if not self._write(line):
                self._count(1)
            elif self.num_dropped:
                count = self.num_dropped
                self._count(-count if self._write(self._line_of_dropped(count)) else 0)

    def _count(self, dropped: int) -> None:
        with self._news:
            self.num_dropped += dropped

    def _write(self, line: bytes) -> bool:
        """Whether it was written to its end."""
        rest = b"\n" + line if self._is_cut else line
        whole = len(rest)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # it is shared, and somebody set it so
                select.select([], [self._fd], [])
            except OSError:  # nobody reads any more, or the disk is full
                self._is_cut |= len(rest) < whole
                return False
        self._is_cut = False
        return True


def _record(message: str, name: str = "log", **fields: Any) -> logging.LogRecord:
    return _log.makeRecord(
        _log.name, logging.WARNING, "", 0, message, (), None, extra={"fields": {"event": name, **fields}}
    )


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _tells_words(record: logging.LogRecord) -> bool:
    """Whether an exception's own words are told: see `event`."""
    return bool(getattr(record, "words", True))


def _words(error: BaseException, record: logging.LogRecord) -> str:
    told = type(error).__qualname__
    return f"{told}: {error}" if _tells_words(record) and str(error) else told


def _stack(error: BaseException, record: logging.LogRecord) -> str:
    """As Python prints it, causes first."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < _MOST_CAUSES:
        parts.append(f"{''.join(traceback.format_tb(cause.__traceback__))}{_words(cause, record)}\n")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "".join(f"Traceback (most recent call last):\n{part}" for part in reversed(parts))


def _fit(line: Callable[[int], str]) -> str:
    """The line with its values cut as far as it takes. Raises ValueError for very many fields."""
    for cut in _CUTS:
        made = line(cut)
        if len(_encoded(made)) <= MAX_LINE:
            return made
    raise ValueError("the line is too long")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 3]} ... {text[-most * 2 // 3 :]}"


def _plain(value: Any, cut: int) -> Any:
    """What JSON can say of it."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one, cut) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one, cut) for one in list(value)[:_MOST_ITEMS]]
    text = str(value)
    return _cut(text if text.isascii() else text.encode("utf-8", "backslashreplace").decode(), cut)


def _quoted(value: Any, cut: int) -> str:
    """A field of a line of text: in quotes where it could be taken for more than one word."""
    plain = _plain(value, cut)
    if not isinstance(plain, str):
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return plain if plain and not set(plain) & set(" =\"'\\") else json.dumps(plain, ensure_ascii=False)


def printable(text: str) -> str:
    """One line that does nothing to a terminal: control characters and the like are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    event(_log, logging.CRITICAL, "uncaught", "an error that nobody caught", error=error)
    flush()
