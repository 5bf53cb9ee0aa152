"""A cluster's tables have a row for each pool and worker, in the terminal and on the page."""

from __future__ import annotations

from typing import Any

from loadgen.metrics.classes import PromptClasses
from loadgen.results.class_tables import class_table
from loadgen.results.cluster_tables import cluster_tables

TOKENS = {"prefill_tokens": 0, "decode_tokens": 0, "found_tokens": 0, "hit_rate": None}
NO_TRANSFERS = {"sent_requests": 0, "received_requests": 0, "sent_expired": 0, "received_failed": 0}


def document(**changes: Any) -> dict[str, Any]:
    sent = {"sent_requests": 5, "sent_blocks": 50, "sent_bytes": 2**20, "p50_sent_ms": 4.0, "p99_sent_ms": 9.0}
    took = {"received_requests": 4, "received_blocks": 40, "received_bytes": 2**19, "p50_received_ms": 1.5}
    steps = {"mean_decode_step_alone_ms": 10.0, "mean_decode_step_mixed_ms": 25.0}
    prefill = TOKENS | NO_TRANSFERS | {"prefill_tokens": 900, "routed": 5, "sent_expired": 1} | sent
    decode = TOKENS | NO_TRANSFERS | {"decode_tokens": 300, "routed": 5, "received_failed": 1} | took | steps
    cluster = {
        "control": {"separate": True, "routing": "prefix", "local_prefill": 64},
        "workers": {"prefill-0": {"role": "prefill", **prefill}, "decode-0": {"role": "decode", **decode}},
        "pools": {
            "prefill": {"workers": 1, **prefill, "imbalance": None},
            "decode": {"workers": 1, **decode, "imbalance": None},
        },
        "router": {
            "decisions": 10,
            "by_prefix": 2,
            "bounded": 0,
            "local": 1,
            "handed_over": 5,
            "recovered": 3,
            "mean_decision_us": 20.0,
        },
        "imbalance": 1.5,
    }
    return {"engine": {**TOKENS, **NO_TRANSFERS, "prefill_tokens": 900, "cluster": cluster}, **changes}


def test_a_row_for_each_pool_and_each_worker() -> None:
    pools, transfers = cluster_tables(document())
    rows = {row[0]: dict(zip(pools.columns[1:], row[1:], strict=True)) for row in pools.rows}
    assert list(rows) == ["prefill pool", "  prefill-0", "decode pool", "  decode-0", "all"]
    assert rows["prefill pool"]["prefill"] == rows["all"]["prefill"] == "900"
    assert (rows["all"]["requests"], rows["all"]["imbalance"]) == ("10", "1.500")
    assert (rows["  decode-0"]["mixed/alone"], rows["  prefill-0"]["mixed/alone"]) == ("2.500", "-")
    assert "5 handed over, 3 recovered." in " ".join(pools.caption)
    moved = {row[0]: dict(zip(transfers.columns[1:], row[1:], strict=True)) for row in transfers.rows}
    assert list(moved) == ["prefill pool gave", "  prefill-0 gave", "decode pool took", "  decode-0 took"]
    assert moved["  prefill-0 gave"]["bytes"] == "1.0 MiB"
    assert (moved["  decode-0 took"]["p50 (ms)"], moved["  decode-0 took"]["failed"]) == ("1.500", "1")


def test_without_transfers_there_is_no_table_of_them() -> None:
    told = document()
    for part in (*told["engine"]["cluster"]["workers"].values(), *told["engine"]["cluster"]["pools"].values()):
        part |= NO_TRANSFERS
    assert len(cluster_tables(told)) == 1


def test_an_engine_alone_is_no_cluster() -> None:
    assert cluster_tables({"engine": {"steps": 3}}) == cluster_tables({"engine": None}) == []


def test_classes_have_a_row_for_each_latency() -> None:
    assert class_table({"classes": None}) is None
    classes = PromptClasses(512)
    classes.untold = 2
    table = class_table({"classes": classes.figures()})
    assert table is not None
    assert [row[0] for row in table.rows][:2] == ["TTFT, scheduled, short (ms)", "TTFT, scheduled, long (ms)"]
    assert table.caption[0] == "short: the 0 prompts of up to 512 tokens; long: the 0 others."
    assert table.caption[1].startswith("2 turns told no length")
