"""What is told of an engine that cannot go on: a crash file, a line in the log, and a word to the API process."""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Callable

from engine.crash_file import crash_folder, write_crash_file
from engine.flight_recorder import FlightRecorder
from engine.loading.errors import ModelError
from engine.log import event
from engine.messages import Fatal

_log = logging.getLogger(__name__)


class LastWords:
    """Tells once, whichever thread comes first. `send` takes the word to the API process."""

    def __init__(self, recorder: FlightRecorder, crash_dir: str | None, send: Callable[[Fatal], None]) -> None:
        self._recorder = recorder
        self._crash_dir = crash_dir
        self._send = send
        self._told = threading.Lock()

    def tell(self, what: str, error: BaseException | None = None) -> None:
        """`what` is wrong, for a person."""
        if not self._told.acquire(blocking=False):
            return
        path = self._crash_file()
        told = f"{what}; the steps before it: paged-top play {shlex.quote(path)}" if path else what
        event(_log, logging.CRITICAL, "engine_failed", told, error=error, crash_file=path or None)
        self._send(Fatal(what, unusable=False, crash_file=path))

    def _crash_file(self) -> str:
        """The path of what was written; empty where nothing could be, which the log then says."""
        try:
            return str(write_crash_file(crash_folder(self._crash_dir), self._recorder.lines()))
        except (OSError, ModelError) as error:
            event(_log, logging.ERROR, "crash_file_failed", f"no crash file could be written (--crash-dir): {error}")
        return ""
