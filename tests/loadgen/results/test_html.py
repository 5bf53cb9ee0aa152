"""A page has everything in it, for one run or several, and shows what anybody wrote as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sample_runs import CLIENT, completed, failed, header, write_run

from loadgen.outcome import RequestRecord
from loadgen.results.document import Measured, measure
from loadgen.results.html import page
from loadgen.results.run_file import RunEnd

ENGINE = {"modes": ["continuous+paged"], "steps": 2, "mean_internal_waste_share": 0.25}
SERVER = {
    "where": "http://server:8000/metrics",
    "looks": 3,
    "seconds": 5.0,
    "restarted": False,
    "prompt_tokens": 5,
    "generation_tokens": 3,
    "mean_kv_usage": 0.5,
    "mean_ttft_ms": 480.0,
    "p50_ttft_at_most_ms": 500.0,
    "p90_ttft_at_most_ms": 500.0,
    "p99_ttft_at_most_ms": None,
    "count_ttft": 1,
}
END = RunEnd(
    at=6.0, client=CLIENT, engine=ENGINE, moments=((1.0, 64, 16, 4), (2.0, 64, 8, 5), (3.0, 0, 0, 0)), server=SERVER
)
WITHOUT_AN_END = {"meta", "br", "line", "path", "polyline"}


class Reader(HTMLParser):
    """Checks that what is opened is closed in turn, and keeps the text by element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.words: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not {name for name, _ in attributes} & {"src", "href", "onclick", "onload"}
        if tag not in WITHOUT_AN_END:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.words.setdefault(tag, []).append(data)


def a_run(path: Path, *records: RequestRecord, end: RunEnd | None = END, **settings: Any) -> Measured:
    name = path / f"{len(list(path.iterdir()))}.jsonl"
    return measure(write_run(name, records, end, header(1, len(records), **settings)))


def test_one_run(tmp_path: Path) -> None:
    text = page([a_run(tmp_path, completed(), slo="ttft=600ms,tpot=300ms")], merge=False)
    reader = Reader(text)
    assert "script" not in reader.seen
    assert not re.search(r"@import|url\(|https?://(?!server:8000)", text)
    assert "prefers-color-scheme:dark" in text
    words = "".join(reader.words["body"])
    for expected in (
        "replay: chat.jsonl on m",
        "1 of 1",
        "limit of TTFT",
        "TTFT: 1 requests; TTFT, scheduled: 1 requests",
        "ITL per chunk: 2 gaps",
        "1 sent, 1 completed, 0 failed",
        "3 tokens; rates over 0.05 s each",
        "3 moments",
        "goodput",
        "agree",
        "3 looks in 5.000 s at http://server:8000/metrics.",
        "The server's percentiles are the bounds of its buckets",
        "Some CPU, 2 cores, 8 GiB",
    ):
        assert expected in words, expected
    assert reader.seen.count("svg") == 11


def test_what_was_written_by_others_is_text(tmp_path: Path) -> None:
    bad = '<script>alert("x")</script>'
    end = msgspec.structs.replace(END, notes=(bad,), stopped_by=bad)
    text = page([a_run(tmp_path, failed(detail=bad), end=end, file=bad)], merge=False)
    assert "<script" not in text
    assert Reader(text).seen.count("script") == 0
    assert text.count("&lt;script&gt;") >= 4


def test_failures_end_the_lines_of_the_percentiles(tmp_path: Path) -> None:
    words = page([a_run(tmp_path, completed(), failed())], merge=False)
    assert "TTFT: 1 requests, and 1 failed: the line ends there" in words
    assert "First &#x27;HTTP 400&#x27;: session s0 turn 1: 400: too [long]" in words


def test_warnings_come_before_the_figures(tmp_path: Path) -> None:
    client = CLIENT | {"client_is_bottleneck": True}
    server = SERVER | {"generation_tokens": 5}
    text = page([a_run(tmp_path, completed(), end=msgspec.structs.replace(END, client=client, server=server))], False)
    figures = text.index('class="tiles"')
    assert text.index("loadgen itself was slow") < figures
    assert text.index("The server counted 5 tokens of answers, its clients here 3") < figures


@pytest.mark.parametrize("records", [(), (failed(),)])
def test_a_run_without_a_latency(tmp_path: Path, records: tuple[RequestRecord, ...]) -> None:
    Reader(page([a_run(tmp_path, *records, end=None)], merge=False))


def test_repeats_are_one_page_without_time(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, completed()), a_run(tmp_path, completed())]
    text = page(runs, merge=True)
    assert "2 of 2" in text
    assert "TTFT: 2 requests" in text
    assert "Over time" not in text
    assert Reader(text).seen.count("h1") == 1


def test_several_runs_follow_a_table_of_all(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, completed()), a_run(tmp_path, completed(tokens=9))]
    reader = Reader(page(runs, merge=False))
    assert reader.seen.count("h1") == 3
    assert reader.seen.count("section") == 2
    assert "2 runs: 0.jsonl, 1.jsonl" in reader.words["h1"]


def test_the_page_of_a_long_run_is_small(tmp_path: Path) -> None:
    records = [completed(index=number, sent=number / 10) for number in range(4000)]
    run = a_run(tmp_path, *records, end=msgspec.structs.replace(END, at=402.0, moments=END.moments * 5000))
    text = page([run], merge=False)
    assert len(text) < 200_000
    assert "1,500 of 4,000 requests, drawn at random" in text
    assert "slowest" in text
    assert "of 15,000 moments" in text
