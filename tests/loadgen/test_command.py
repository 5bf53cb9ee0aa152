"""The exit code tells what became of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.command import exit_code
from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.run_file import BY_HAND, RunEnd, RunFile, RunHeader, RunWriter
from loadgen.settings import Settings

HEADER = RunHeader(
    label="replay",
    settings=Settings(file="chat.jsonl"),
    started_at="2026-01-02T03:04:05+00:00",
    sessions=2,
    turns=2,
    trace={},
    server={},
    versions={},
    machine={},
)


def run_of(path: Path, outcomes: list[Outcome], stopped_by: str | None) -> RunFile:
    """Of two sessions with a turn each."""
    with RunWriter(path, HEADER) as writer:
        for index, outcome in enumerate(outcomes):
            writer.append(
                RequestRecord(session="s", index=index, turn=0, outcome=outcome, scheduled=0.0, sent=0.0, ended=1.0)
            )
        writer.finish(RunEnd(at=1.0, stopped_by=stopped_by))
    return RunFile.read(path)


@pytest.mark.parametrize(
    ("outcomes", "stopped_by", "code"),
    [
        ([Outcome.COMPLETED] * 2, None, 0),
        ([Outcome.COMPLETED, Outcome.TIMEOUT], None, 1),
        ([Outcome.COMPLETED, Outcome.NOT_REACHED], None, 1),
        ([Outcome.COMPLETED], None, 1),  # a session without a line was not played
        ([Outcome.COMPLETED], "requests=1", 0),
        ([Outcome.COMPLETED, Outcome.NOT_REACHED], "requests=1", 0),
        ([Outcome.HTTP_ERROR], "errors=1: 1 requests failed", 1),
        ([Outcome.COMPLETED, Outcome.INTERRUPTED], BY_HAND, 130),
        ([Outcome.HTTP_ERROR, Outcome.INTERRUPTED], BY_HAND, 130),
    ],
)
def test_exit_codes(tmp_path: Path, outcomes: list[Outcome], stopped_by: str | None, code: int) -> None:
    assert exit_code(run_of(tmp_path / "run.jsonl", outcomes, stopped_by)) == code
