"""What a server tells of itself beside what its client saw."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.metrics.summary import Figures
from loadgen.results.document import latency_by_both
from loadgen.results.server_tables import server_latency_table, server_table
from tests.loadgen.metrics.records import record

TOLD = {"mean_ttft_ms": 450.0, "p50_ttft_at_most_ms": 500.0, "p90_ttft_at_most_ms": 500.0, "count_ttft": 2}


def both(server: dict[str, Any]) -> dict[str, Any]:
    whole = Figures()
    for sent in (10.5, 10.75):  # 500 and 250 ms before the first chunk
        whole.add(record(sent=sent))
    return {"latency_by_both": latency_by_both(whole, server)}


def test_client_and_server_side_by_side() -> None:
    table = server_latency_table(both({**TOLD, "p99_ttft_at_most_ms": 1000.0}))
    assert table is not None
    assert [row[0] for row in table.rows] == ["TTFT, client (ms)", "TTFT, server (ms)"]
    client, server = table.rows
    assert (client[1], client[-1]) == ("375.0", "2")
    assert server[1:] == ("450.0", "<= 500.0", "<= 500.0", "<= 1,000", "2")
    assert len(table.caption) == 2
    assert table.caption[0].startswith("Of the whole run. The server's percentiles are the bounds")


def test_what_is_beyond_the_last_bound_is_said_to_be() -> None:
    table = server_latency_table(both({**TOLD, "p99_ttft_at_most_ms": None}))
    assert table is not None
    assert table.rows[1][4] == "-"
    assert table.caption[-1] == "-: it is beyond the last of the server's bounds."


def test_a_servers_latencies_are_of_the_last_part_of_a_run_that_was_resumed() -> None:
    table = server_latency_table({**both(TOLD), "parts": 2})
    assert table is not None
    assert table.caption[0].startswith("The client's are of the whole run, the server's of its last part")


@pytest.mark.parametrize(("looks", "words"), [(1, "1 look in "), (2, "2 looks in ")])
def test_how_often_it_was_looked_at(looks: int, words: str) -> None:
    metrics = {"looks": looks, "seconds": 2.0, "where": "http://a/metrics", "requests": 3}
    table = server_table({"server": {"metrics": metrics}})
    assert table is not None
    assert table.rows == (("requests ended", "3"),)
    assert table.caption[0].startswith(words)
