"""A run's requests for other programs: a CSV line each, and the result file of `vllm bench serve`."""

from __future__ import annotations

import csv
import datetime
import io
import tempfile
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

import msgspec

from loadgen.arrivals import Gamma, Immediate, Poisson, parse_arrivals
from loadgen.metrics.latency import Latencies, latencies
from loadgen.metrics.slo import overall
from loadgen.metrics.window import Part
from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.document import Document, Measured

COLUMNS = (
    "run", "session", "index", "turn", "part", "outcome", "status", "detail", "scheduled_s", "sent_s",
    "first_chunk_s", "last_chunk_s", "ended_s", "send_lag_ms", "ttft_ms", "ttft_scheduled_ms", "tpot_ms",
    "mean_itl_ms", "max_itl_ms", "e2el_ms", "e2el_scheduled_ms", "asked_input", "input_tokens", "cached_tokens",
    "asked_output", "output_tokens", "token_source", "chunks", "streamed", "retries", "within_limits",
    "finish_reason", "server",
)  # fmt: skip
VLLM_METRICS = ("ttft", "tpot", "itl", "e2el")
VLLM_STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
VLLM_COLUMNS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors")
IN_MEMORY = 2**20  # bytes of a column before it goes to a file


def write_csv(file: BinaryIO, runs: Sequence[Measured]) -> None:
    """One line for each request of each run; what does not exist is empty. Raises `ResultError`."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for run in runs:
        name = run.run.path.name
        writer.writerows(_cells(name, run, record) for record in run.run.records())
    text.detach()  # flushes, and leaves the file open to whoever opened it


def _cells(name: str, run: Measured, record: RequestRecord) -> tuple[object, ...]:
    measured, slo = latencies(record), run.figures.slo
    chunks, gaps = record.chunks, measured.itl
    within = None if slo is None else overall(slo.verdicts(record, measured))
    return (
        name, record.session, record.index, record.turn, run.figures.window.part(record), record.outcome,
        record.status, record.detail, record.scheduled, record.sent, chunks[0] if chunks else None,
        chunks[-1] if chunks else None, record.ended, _short(measured.send_lag), _short(measured.ttft),
        _short(measured.ttft_scheduled), _short(measured.tpot), _short(sum(gaps) / len(gaps) if gaps else None),
        _short(max(gaps, default=None)), _short(measured.e2el), _short(measured.e2el_scheduled), record.asked_input,
        record.input_tokens, record.cached_tokens, record.asked_output, record.output_tokens, record.token_source,
        len(chunks), record.streamed, record.retries, within, record.finish, run.server,
    )  # fmt: skip


def _short(milliseconds: float | None) -> float | None:
    """To the microsecond, as times are kept."""
    return None if milliseconds is None else round(milliseconds, 3)


def write_vllm(file: BinaryIO, run: Measured) -> None:
    """The run as `vllm bench serve --save-result --save-detailed` writes one, without the generated texts.

    Of vLLM's own (vllm/benchmarks/serve.py) it differs where that would be untrue: output tokens are not chunks, a
    latency that does not exist is null where the request was completed, start times are seconds of the run, and what
    was not sent with a rate has none. Only requests that count are listed, completed and failed. Raises `ResultError`.
    """
    load = _Load()
    with _Columns() as columns:
        for record in run.run.records():
            counts = run.figures.window.part(record) is Part.MEASURED
            if counts and (record.outcome is Outcome.COMPLETED or record.outcome.failed):
                columns.add(_vllm_values(record, latencies(record)))
                load.add(record)
        head = vllm_figures(run.document()) | load.figures()
        file.write(msgspec.json.encode(head).removesuffix(b"}"))
        for name, parts in columns.whole():
            file.write(b"," + msgspec.json.encode(name) + b":[")
            for part in parts:
                file.write(part)
            file.write(b"]")
        file.write(b"}\n")


def vllm_figures(document: Document) -> dict[str, Any]:
    """All but the lists and the peaks, under vLLM's names."""
    settings, summary = document["settings"], document["summary"]
    rate, burstiness = _rate(settings)
    copied = ("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
              "output_throughput", "total_token_throughput")  # fmt: skip
    started = datetime.datetime.fromisoformat(settings["started_at"])
    backend = "openai" if settings["endpoint"] == "completions" else "openai-chat"
    return {
        "date": started.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": backend,
        "backend": backend,
        "label": document["label"],
        "model_id": settings["model"],
        "tokenizer_id": settings["tokenizer"] or settings["model"],
        "server_kind": document["server"].get("kind"),
        "server_version": document["server"].get("version"),
        "server_metrics": document["server"]["metrics"],
        "num_prompts": summary["turns"],
        "request_rate": rate,
        "burstiness": burstiness,
        "max_concurrency": settings["concurrency"],
        **{name: summary[name] for name in copied},
        "request_goodput": summary["goodput"],
        **{f"{stat}_{name}_ms": summary[f"{stat}_{name}_ms"] for name in VLLM_METRICS for stat in VLLM_STATISTICS},
    }


def _rate(settings: Mapping[str, Any]) -> tuple[float | str | None, float | None]:
    """Requests/s and their burstiness, where the arrivals are what vLLM can do; Poisson is its gamma of shape 1.

    None of sessions with several turns: theirs is a rate of sessions.
    """
    if settings["sessions"] != settings["turns"]:
        return None, None
    match parse_arrivals(settings["arrivals"], settings["seed"]):
        case Immediate():
            return "inf", 1.0
        case Poisson(rate=rate):
            return rate, 1.0
        case Gamma(rate=rate, burstiness=burstiness):
            return rate, burstiness
    return None, None


def _vllm_values(record: RequestRecord, measured: Latencies) -> tuple[object, ...]:
    """In the order of `VLLM_COLUMNS`, in seconds."""
    completed = record.outcome is Outcome.COMPLETED

    def seconds(milliseconds: float | None) -> float | None:
        return 0.0 if not completed else None if milliseconds is None else round(milliseconds / 1000, 6)

    input_tokens = record.asked_input if record.input_tokens is None else record.input_tokens
    return (
        input_tokens,
        record.output_tokens if completed else 0,
        seconds(measured.ttft),
        [round(gap / 1000, 6) for gap in measured.itl] if completed else [],
        seconds(measured.e2el),
        record.sent,
        None if measured.send_lag is None else round(measured.send_lag / 1000, 6),
        "" if completed else record.detail or str(record.outcome),
    )


class _Columns:
    """Lists that grow together, one value of each at a time, as JSON in files: a run may be larger than memory."""

    def __init__(self) -> None:
        self._files = [tempfile.SpooledTemporaryFile(IN_MEMORY) for _ in VLLM_COLUMNS]  # noqa: SIM115
        self._any = False

    def __enter__(self) -> _Columns:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def add(self, values: Sequence[object]) -> None:
        for file, value in zip(self._files, values, strict=True):
            file.write((b"," if self._any else b"") + msgspec.json.encode(value))
        self._any = True

    def whole(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Each column's name and its values with commas between them."""
        for name, file in zip(VLLM_COLUMNS, self._files, strict=True):
            file.seek(0)
            yield name, iter(partial(file.read, IN_MEMORY), b"")


class _Load:
    """The peaks that vLLM has: output tokens of a second, and requests in flight, of completed requests."""

    def __init__(self) -> None:
        self._tokens = defaultdict[int, float](float)
        self._starts, self._ends = array("d"), array("d")

    def add(self, record: RequestRecord) -> None:
        if record.outcome is not Outcome.COMPLETED or record.sent is None or not record.chunks:
            return
        self._starts.append(record.sent)
        self._ends.append(record.chunks[-1])
        for second, chunks in Counter(map(int, record.chunks)).items():
            self._tokens[second] += chunks * record.output_tokens / len(record.chunks)

    def figures(self) -> dict[str, float | int]:
        return {
            "max_output_tokens_per_s": max(self._tokens.values(), default=0.0),
            "max_concurrent_requests": self._most_at_once(),
        }

    def _most_at_once(self) -> int:
        """One that ends when another is sent is not in flight with it."""
        starts, ends = sorted(self._starts), sorted(self._ends)
        most = over = 0
        for begun, start in enumerate(starts, 1):
            while ends[over] <= start and over < begun - 1:
                over += 1
            most = max(most, begun - over)
        return most
