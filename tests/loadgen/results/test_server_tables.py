"""What a server tells of itself beside what its client saw."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.metrics.summary import Figures
from loadgen.results.document import latency_by_both
from loadgen.results.server_tables import engines_table, server_latency_table, server_table
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


def engine(model: str, rank: str, **told: Any) -> dict[str, Any]:
    return {"model": model, "rank": rank, "requests": 1, "mean_running": 2.0, "prefix_hit_rate": None, **told}


def test_each_engine_has_a_row_in_the_order_of_ranks() -> None:
    engines = [engine("m", rank, mean_kv_usage=0.5) for rank in ("0", "10", "2")]
    table = engines_table({"server": {"metrics": {"engines": engines, "mean_kv_usage": 0.5}}})
    assert table is not None
    assert table.columns == ("", "requests", "running", "KV memory")
    assert [row[0] for row in table.rows] == ["0", "2", "10"]
    assert table.rows[0][1:] == ("1", "2.000", "50.00%")
    assert table.caption[1].endswith("of all together is that of each, weighted by its size.")


def test_engines_of_several_models_are_named_by_these_and_memory_of_unknown_size_has_no_total() -> None:
    engines = [engine("b", ""), engine("a", "1", mean_kv_usage=0.5)]
    table = engines_table({"server": {"metrics": {"engines": engines, "mean_kv_usage": None}}})
    assert table is not None
    assert [(row[0], row[-1]) for row in table.rows] == [("a 1", "50.00%"), ("b", "-")]
    assert table.caption[1] == "KV memory in use of all together is not known: not all tell how large theirs is."


def test_one_engine_has_no_table_of_its_own() -> None:
    for metrics in (None, {"engines": []}, {}):
        assert engines_table({"server": {"metrics": metrics}}) is None
