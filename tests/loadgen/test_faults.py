"""The faults that public load generators have had, each against the golden server by the path of `loadgen replay`.

They are listed in shared/reference/loadgen-metrics.md. Two are of reading a trace, and tested beside the readers: a
timestamp taken in the wrong unit, and bad lines skipped in silence.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from aiohttp import web
from golden import (
    Cut,
    GoldenServer,
    Script,
    Served,
    Write,
    answer,
    chunk,
    done,
    event,
    finish,
    prompt_of,
    role,
    text,
    usage,
)
from rich.console import Console

from loadgen.metrics.summary import summarize
from loadgen.outcome import Outcome, RequestRecord, TokenSource
from loadgen.perform import perform
from loadgen.settings import Settings
from loadgen.target import Steering, Target
from loadgen.traces.chat import trace_lines
from loadgen.traces.model import FORMAT, VERSION, Header, Session, Turn

SLACK = 0.25  # seconds that a busy machine may add
EXACT = 2e-6  # seconds that the rounding of a run's file may take

Scripts = Callable[[dict[str, Any]], Script]


async def run(
    folder: Path,
    script: Script | Scripts,
    times: Sequence[float] = (0.0,),
    server_type: type[GoldenServer] = GoldenServer,
    **settings: Any,
) -> tuple[list[RequestRecord], list[Served]]:
    """One request for each arrival; the records and what was served, both by the order of the trace."""
    trace = folder / "trace.jsonl"
    sessions = [
        Session(session=f"s{number}", arrival=arrival, turns=(Turn(user=str(number), output_tokens=3),))
        for number, arrival in enumerate(times)
    ]
    trace.write_bytes(b"".join(trace_lines(Header(FORMAT, VERSION), sessions)))
    async with server_type((lambda _: script) if isinstance(script, Script) else script) as server:
        asked = Settings(file=str(trace), url=server.url, timeout=60.0, probe=False, **settings)
        quiet = Console(file=io.StringIO())
        file = await perform(asked, Target(server.url), folder / "run.jsonl", quiet, Steering())
    records = sorted(file.records(), key=lambda record: record.index)
    return records, sorted(server.served, key=lambda one: int(prompt_of(one.body)))


def figure(records: Sequence[RequestRecord], name: str) -> Any:
    return summarize(records)[name]


def lags(records: Sequence[RequestRecord]) -> list[float]:
    """Seconds that each was sent after it was due."""
    pairs = [(record.sent, record.scheduled) for record in records]
    return [sent - due for sent, due in pairs if sent is not None and due is not None]


async def test_waiting_for_a_concurrency_slot_is_left_out_of_latency(tmp_path: Path) -> None:
    """vllm 54101. Three requests are due at once and one at a time may run, 0.2 s each."""
    records, _ = await run(tmp_path, answer(["a"], first=0.2), [0.0, 0.0, 0.0], concurrency=1)
    waited = sorted(
        record.sent - record.scheduled for record in records if record.sent and record.scheduled is not None
    )
    assert waited[1] >= 0.2 - 0.01
    assert waited[2] >= 0.4 - 0.01
    for name in ("ttft", "e2el"):
        from_sent, from_due = figure(records, f"max_{name}_ms"), figure(records, f"max_{name}_scheduled_ms")
        assert from_due >= from_sent + 390
    assert figure(records, "max_send_lag_ms") >= 390


async def test_ttft_is_taken_at_the_role_chunk(tmp_path: Path) -> None:
    """vllm 3759."""
    script = Script([role(), text("", 0.1), text("a", 0.3), finish(), usage(1, 1), done()])
    records, served = await run(tmp_path, script)
    assert figure(records, "min_ttft_ms") >= 390
    assert (len(records[0].chunks), len(served[0].content_times)) == (1, 1)


async def test_chunks_are_counted_as_tokens(tmp_path: Path) -> None:
    """sglang 12064, vllm 28183 and 35471: the server says 5 tokens, in two chunks."""
    script = Script([role(), text(" one two"), text(" three four five", 0.4), finish(), usage(3, 5), done()])
    records, served = await run(tmp_path, script)
    assert (records[0].output_tokens, records[0].token_source, len(records[0].chunks)) == (5, TokenSource.USAGE, 2)
    assert figure(records, "total_output_tokens") == 5
    assert figure(records, "output_tokens_per_chunk") == 2.5
    first, last = served[0].content_times
    assert figure(records, "mean_tpot_ms") == pytest.approx((last - first) / 4 * 1000, abs=SLACK * 1000 / 4)


async def test_chunks_stand_for_tokens_unsaid(tmp_path: Path) -> None:
    """Where the server tells no usage, the source is named."""
    records, _ = await run(tmp_path, Script([role(), text("a"), text("b"), finish(), done()]))
    assert (figure(records, "total_output_tokens"), figure(records, "token_source")) == (2, "chunks")


async def test_utf8_split_across_network_reads_fails_the_request(tmp_path: Path) -> None:
    """vllm 38717: each byte comes alone."""
    stream = b"".join(event(chunk({"content": word})) for word in ("äö", "日本", "🌍👩‍👧"))
    single_bytes = [Write(stream[i : i + 1], 0.0005) for i in range(len(stream))]
    records, _ = await run(tmp_path, Script([role(), *single_bytes, finish(), usage(2, 9), done()]))
    assert (records[0].outcome, len(records[0].chunks)) == (Outcome.COMPLETED, 3)


async def test_a_small_read_buffer_throttles_the_client(tmp_path: Path) -> None:
    """vllm 39963: megabytes come at once, in one event and in twenty thousand."""
    large = Write(event(chunk({"content": "x" * 3_000_000})))
    many = Write(event(chunk({"content": "x"})) * 20_000)
    records, _ = await run(tmp_path, Script([role(), large, many, finish(), usage(2, 20_001), done()]))
    assert (records[0].outcome, len(records[0].chunks)) == (Outcome.COMPLETED, 20_001)


async def test_the_usage_chunk_is_counted_in_latency(tmp_path: Path) -> None:
    """vllm 55508: finish, usage and [DONE] come 0.3 s late each."""
    script = Script([role(), text("a"), text("b"), finish(0.3), usage(1, 2, 0.3), done(0.3)])
    records, served = await run(tmp_path, script)
    record = records[0]
    assert record.sent is not None
    assert record.ended is not None
    assert record.ended - record.chunks[-1] >= 0.9 - SLACK
    truth = (served[0].content_times[-1] - served[0].received) * 1000
    assert figure(records, "max_e2el_ms") == pytest.approx(truth, abs=SLACK * 1000)
    assert figure(records, "count_itl") == 1


async def test_the_client_library_queues_beyond_its_connection_limit(tmp_path: Path) -> None:
    """azure-openai-benchmark 8: nobody is answered before all 300 have arrived."""
    count = 300
    everyone = asyncio.Event()

    class Gate(GoldenServer):
        async def _answer(self, request: web.Request, script: Script, served: Served) -> web.StreamResponse:
            if self.in_flight == count:
                everyone.set()
            await everyone.wait()
            return await super()._answer(request, script, served)

    records, _ = await run(tmp_path, answer(["a"]), [0.0] * count, Gate)
    assert [record.outcome for record in records] == [Outcome.COMPLETED] * count


async def test_failures_are_missing_from_percentiles(tmp_path: Path) -> None:
    """aiperf 688: three of ten fail, and their latency is nobody's."""
    ways = {"7": Script(status=500, body={}), "8": Script([role(), text("a"), Cut()]), "9": Script(dropped=True)}
    records, _ = await run(tmp_path, lambda body: ways.get(prompt_of(body), answer(["a", "b", "c"])), [0.0] * 10)
    assert (figure(records, "completed"), figure(records, "failed")) == (7, 3)
    for name in ("ttft", "e2el"):
        assert figure(records, f"p50_{name}_ms") is not None
        assert figure(records, f"p90_{name}_ms") is None
        assert figure(records, f"count_{name}") == 7


@pytest.mark.parametrize(
    "delta", [{"reasoning": "hm"}, {"reasoning_content": "hm"}, {"tool_calls": [{"index": 0, "id": "x"}]}]
)
async def test_ttft_ignores_reasoning_and_tool_calls(delta: dict[str, Any], tmp_path: Path) -> None:
    """guidellm 737."""
    thought = Write(event(chunk(delta)), content=True)
    records, served = await run(tmp_path, Script([role(), thought, text("a", 0.5), finish(), usage(1, 2), done()]))
    assert len(records[0].chunks) == len(served[0].content_times) == 2
    assert figure(records, "max_ttft_ms") < SLACK * 1000
    assert figure(records, "max_itl_ms") >= 490 - SLACK * 1000


async def test_requests_are_sent_late_or_not_at_all(tmp_path: Path) -> None:
    """inference-perf 188, 245 and 633: each is sent at its moment, though none before it has ended, and reported."""
    arrivals = [number * 0.02 for number in range(50)]
    records, served = await run(tmp_path, answer(["a", "b"], first=1.5), arrivals)
    assert [record.index for record in records] == list(range(50))
    assert len(served) == figure(records, "completed") == 50
    begin = records[0].scheduled
    assert begin is not None
    for record, arrival in zip(records, arrivals, strict=True):
        assert record.scheduled == pytest.approx(begin + arrival, abs=EXACT)
    came = [one.received - served[0].received - arrival for one, arrival in zip(served, arrivals, strict=True)]
    assert abs(median(came)) < SLACK  # as the server saw it, whatever kept one or the other
    assert min(lags(records)) >= -EXACT
    assert figure(records, "count_send_lag") == 50


async def test_a_stop_leaves_requests_unreported(tmp_path: Path) -> None:
    """The same faults at a stage's end: what was cut short and what was not reached are counted, each as what it is."""
    records, _ = await run(tmp_path, answer(["a"]), [0.0] * 5, until=("requests=3",))
    assert figure(records, "completed") == 3
    assert figure(records, "turns") == len(records)


async def test_itl_includes_ttft(tmp_path: Path) -> None:
    """llmperf 99: the first token takes 0.6 s, the gaps are 0.05 s."""
    records, served = await run(tmp_path, answer(["a", "b", "c"], gap=0.05, first=0.6))
    gaps = [(after - before) * 1000 for before, after in pairwise(served[0].content_times)]
    assert figure(records, "count_itl") == 2
    assert figure(records, "mean_itl_ms") == pytest.approx(sum(gaps) / 2, abs=SLACK * 1000)
    assert figure(records, "max_itl_ms") < 600 <= figure(records, "min_ttft_ms") + 1


async def test_the_schedule_drifts_by_what_each_sending_takes(tmp_path: Path) -> None:
    """A hundred requests 10 ms apart are due at exactly 10 ms times their number, however late each was sent."""
    records, _ = await run(tmp_path, answer(["a"]), [0.0] * 100, arrivals="constant:100")
    due = [record.scheduled for record in records if record.scheduled is not None]
    assert due == [pytest.approx(due[0] + number / 100, abs=EXACT) for number in range(100)]
    assert min(lags(records)[-10:]) < SLACK
