"""The trace that inspect is measured with has the hit rate that it says it has."""

from __future__ import annotations

from pathlib import Path

from benchmarks.inspection import BLOCK, inspect, make
from loadgen.inspection.hit_rate import ideal_hits
from loadgen.traces.formats import open_trace


def test_what_is_made_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    with path.open("wb") as file:
        states = make(file, 1_000_000, [100_000, 1_000_000])
    assert path.stat().st_size >= 1_000_000
    trace = open_trace(path)
    (hit,) = ideal_hits(trace.sessions(), trace.header, (BLOCK,))
    made = states[1_000_000]
    assert (hit.found_tokens, hit.input_tokens) == (made.found_tokens, made.input_tokens)
    beginning = states[100_000]
    told = inspect(path, beginning.requests)
    assert told["requests"] == beginning.requests < made.requests
    assert told["hit"]["found_tokens"] == beginning.found_tokens
    assert told["peak_bytes"] > 0
