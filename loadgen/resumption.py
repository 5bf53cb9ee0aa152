"""Going on with a run: what of it is over, and whether it can be gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from loadgen.live.tally import Counts
from loadgen.outcome import RequestRecord
from loadgen.played import is_done
from loadgen.results.run_file import BY_HAND, ENGINE_ENDED, ResultError, RunFile, RunHeader


@dataclass(frozen=True, slots=True)
class Past:
    """A run that was cut short: `seconds` after which nothing happened in it, and how many turns are over.

    Those are by a session's index; a session is over when they are all of its turns.
    """

    run: RunFile
    seconds: float
    turns: Mapping[int, int]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises `ResultError`, also for a run that came to its end."""
        run = RunFile.read(path)
        if run.complete:
            raise ResultError(f"{path}: is complete, nothing is left to play; `loadgen report {path}` tells of it")
        if run.end is not None and run.end.stopped_by not in (None, BY_HAND, ENGINE_ENDED):
            rule = run.end.stopped_by
            raise ResultError(f"{path}: is over, as --until asked: {rule}; `loadgen report {path}` tells of it")
        ended = max((record.ended or 0.0 for record in run.records()), default=0.0)
        return cls(run, max(ended, *(end.at for end in run.ends), 0.0), run.final_turns())

    def check(self, now: RunHeader) -> None:
        """Raises `ResultError` if the same run would not be played any more."""
        before, path = self.run.header, self.run.path
        if before.trace.get("digest", now.trace["digest"]) != now.trace["digest"]:
            raise ResultError(
                f"{path}: its trace {before.settings.file}, or what of it the server takes, is not what it was; "
                "what is left of the run cannot be told"
            )
        asked, found = before.server.get("model"), now.server["model"]
        if asked not in (None, found):
            raise ResultError(f"{path}: the run asks {asked}, and the server at {now.server['url']} has {found}")

    def count(self, done: bytes, take: Callable[[RequestRecord], None]) -> Counts:
        """Give the requests of the sessions that are over to `take`; `done` is for `is_done`."""
        sent = chunks = 0
        for record in self.run.records():
            if is_done(done, record.index):
                sent += record.sent is not None
                chunks += len(record.chunks)
                take(record)
        return Counts(due=sent, sent=sent, chunks=chunks, sessions_done=done.count(1))
