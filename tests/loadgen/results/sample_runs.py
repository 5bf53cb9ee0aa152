"""Runs to test what is made of them: a header, requests whose latencies are known, and files of both."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from loadgen.outcome import Outcome, RequestRecord, TokenSource
from loadgen.results.run_file import RunEnd, RunFile, RunHeader, RunWriter
from loadgen.settings import Settings

CLIENT = {
    "client_cpu_s": 0.5,
    "client_cpu_share": 0.25,
    "client_mean_loop_lag_ms": 0.2,
    "client_p99_loop_lag_ms": 1.0,
    "client_max_loop_lag_ms": 2.0,
    "client_is_bottleneck": False,
}


def header(sessions: int = 1, turns: int = 1, label: str = "replay", **settings: Any) -> RunHeader:
    """Of a run against a stranger's server."""
    return RunHeader(
        label=label,
        settings=msgspec.structs.replace(Settings(file="chat.jsonl", url="http://server:8000"), **settings),
        started_at="2026-01-02T03:04:05+00:00",
        sessions=sessions,
        turns=turns,
        trace={"format": "paged-top-chat", "temperature": 0.7},
        server={"url": "http://server:8000", "model": "m", "kind": "vllm", "version": "0.11.0", "max_model_len": 4096},
        versions={"loadgen": "0.1.0", "python": "3.11.9", "aiohttp": "3.13.0"},
        machine={"processor": "Some CPU", "cores": 2, "memory_bytes": 8 * 2**30, "system": "Linux 6.1"},
    )


def completed(index: int = 0, turn: int = 0, sent: float = 1.0, tokens: int = 3, **changes: Any) -> RequestRecord:
    """Sent a quarter of a second late; TTFT 500 ms, E2E 900 ms, gaps of 200 ms."""
    record = RequestRecord(
        session=f"s{index}",
        index=index,
        turn=turn,
        outcome=Outcome.COMPLETED,
        scheduled=sent - 0.25,
        sent=sent,
        chunks=(sent + 0.5, sent + 0.7, sent + 0.9),
        ended=sent + 1,
        asked_output=3,
        input_tokens=5,
        output_tokens=tokens,
        token_source=TokenSource.USAGE,
        status=200,
    )
    return msgspec.structs.replace(record, **changes)


def failed(index: int = 0, turn: int = 1, sent: float = 2.0, **changes: Any) -> RequestRecord:
    """An HTTP error after a tenth of a second."""
    record = RequestRecord(
        session=f"s{index}",
        index=index,
        turn=turn,
        outcome=Outcome.HTTP_ERROR,
        scheduled=sent,
        sent=sent,
        ended=sent + 0.1,
        asked_output=3,
        status=400,
        detail="400: too [long]",
    )
    return msgspec.structs.replace(record, **changes)


def write_run(
    path: Path, records: Iterable[RequestRecord] = (), end: RunEnd | None = None, head: RunHeader | None = None
) -> RunFile:
    """A file with these requests; without an end it is that of a killed run."""
    records = tuple(records)
    sessions = len({record.index for record in records})
    with RunWriter(path, head or header(sessions, len(records))) as writer:
        for record in records:
            writer.append(record)
        if end is not None:
            writer.finish(end)
    return RunFile.read(path)
