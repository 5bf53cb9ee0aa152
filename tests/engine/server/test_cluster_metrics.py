"""The metrics of a cluster: one exposition that parsers take, and requests that go from one engine to another."""

from __future__ import annotations

import re
from collections import Counter
from typing import get_args

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from engine.cluster.protocol import (
    ClusterControl,
    ClusterState,
    RouterState,
    TransferDone,
    TransferPhase,
    TransferState,
    TransferTotals,
    WorkerState,
)
from engine.messages import Output
from engine.protocol import Arrived, EngineInfo, Left, Offered, Row
from engine.server.cluster_metrics import ClusterMetrics, worker_text
from engine.server.metrics import Metrics
from engine.server.refusals import Refusals
from tests.engine.cluster.records import arrived, joined, record, transferred

INFO = EngineInfo("tiny", "float32", "cpu", 16, 100, 512, 4096, "0")
PREFILL = WorkerState("prefill-0", "prefill", "ready", "/workers/prefill-0", "here", routed=4, sent=TransferTotals(3))
DECODE = WorkerState(
    "decode-0",
    "decode",
    "draining",
    "/workers/decode-0",
    "here",
    load=640.0,
    received=TransferTotals(2, 9, 900, 0.5, 1),
)
MOVING = TransferState("r", "lease", "prefill-0", "decode-0", "moving", 3, 300, 0.1)
STATE = ClusterState(
    7, 0.0, ClusterControl(prefill=1, decode=2), (PREFILL, DECODE), (MOVING,), (), RouterState(5, 0.001, imbalance=1.5)
)


def families(text: bytes) -> dict[str, Metric]:
    """As a scraper reads it: it would refuse a family that is told twice."""
    told = text.decode()
    named = Counter(re.findall(r"^# TYPE (\S+)", told, re.M))
    assert set(named.values()) == {1}
    assert Counter(re.findall(r"^# HELP (\S+)", told, re.M)) == named
    return {family.name: family for family in text_string_to_metric_families(told)}


def values(family: Metric, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in family.samples}


def counted(metrics: Metrics, name: str) -> float:
    """How many were observed."""
    [found] = [family for family in metrics.families() if family.name == name]
    return next(sample.value for sample in found.samples if sample.name == f"{name}_count")


def test_all_workers_are_in_one_exposition_under_their_names() -> None:
    workers = [Metrics(INFO, "tiny", "prefill-0"), Metrics(INFO, "tiny", "decode-0")]
    workers[1].observe(record(1, "decode", arrived=arrived("a"), joined=(joined("a"),)))
    refused = {**Refusals().counts, "queue_full": 3}
    found = families(ClusterMetrics().text(STATE, workers, refused, "tiny", 0, {}))
    assert values(found["vllm:num_requests_running"], "engine", "model_name") == {
        ("prefill-0", "tiny"): 0.0,
        ("decode-0", "tiny"): 1.0,
    }
    [one, other] = found["vllm:cache_config_info"].samples
    assert (one.labels["engine"], other.labels["engine"]) == ("prefill-0", "decode-0")
    assert values(found["paged:refused_requests"], "code")["queue_full",] == 3  # of the server, and told once
    assert len(found["paged:refused_requests"].samples) == len(refused)
    assert len(found["process_cpu_seconds"].samples) == 1
    for name, family in found.items():
        if not name.startswith(("process_", "paged:refused", "paged:cluster")):
            assert {sample.labels["engine"] for sample in family.samples} <= {"prefill-0", "decode-0"}, name


def test_a_worker_alone_tells_nothing_of_the_server() -> None:
    found = families(worker_text(Metrics(INFO, "tiny", "decode-0")))
    assert "vllm:num_requests_running" in found
    assert not [name for name in found if name.startswith(("process_", "paged:refused", "paged:cluster"))]


def test_what_is_between_the_workers_is_as_the_state_tells_it() -> None:
    metrics = ClusterMetrics()
    done = TransferDone("r", "lease", "prefill-0", "decode-0", 3, 300, waited=0.02, moved=0.004, time=0.0)
    metrics.ended(done)
    metrics.ended(TransferDone("s", "other", "prefill-0", "decode-0", 0, 0, 9.0, 9.0, 0.0, error="it died"))
    found = families(metrics.text(STATE, (), {}, "tiny", 0, {}))
    phases = values(found["paged:cluster_workers"], "role", "phase")
    assert {of: count for of, count in phases.items() if count} == {("prefill", "ready"): 1, ("decode", "draining"): 1}
    assert len(phases) == 12
    assert values(found["paged:cluster_wanted_workers"], "role") == {("prefill",): 1, ("decode",): 2, ("replica",): 0}
    moving = {(phase,): int(phase == "moving") for phase in get_args(TransferPhase)}
    assert values(found["paged:cluster_transfers"], "phase") == moving
    for name, prefill, decode in (
        ("transferred_bytes", 0, 900),
        ("transferred_blocks", 0, 9),
        ("transferred_requests", 0, 2),
        ("failed_transfers", 0, 1),
        ("routed_requests", 4, 0),
        ("load_tokens", 0, 640),
    ):
        told = values(found[f"paged:cluster_{name}"], "engine")
        assert told == {("prefill-0",): prefill, ("decode-0",): decode}, name
    assert values(found["paged:cluster_router_decisions"])[()] == 5
    found = families(metrics.text(STATE, (), {}, "tiny", 5, {"length": 3, "abort": 1}))
    assert values(found["paged:cluster_requests"])[()] == 5
    ended = values(found["paged:cluster_ended_requests"], "finished_reason")
    assert ended == {("stop",): 0, ("length",): 3, ("abort",): 1, ("error",): 0, ("deadline",): 0}
    assert values(found["paged:cluster_imbalance"])[()] == 1.5
    samples = {sample.name: sample.value for sample in found["paged:cluster_transfer_seconds"].samples}
    assert samples["paged:cluster_transfer_seconds_count"] == 1  # of what came alone
    assert samples["paged:cluster_transfer_seconds_sum"] == 0.004


def test_an_answer_is_timed_over_all_engines_that_have_a_part_in_it() -> None:
    metrics, heard = ClusterMetrics(), []
    sink = metrics.timed(heard.append)
    outputs = [
        *(Output("a", token_id=1), Output("b", token_id=2)),
        *(Output("a", token_id=3), Output("a", token_id=4, finished="stop")),
        Output("b", finished="abort"),
    ]
    for output in outputs:
        sink(output)
    assert heard == outputs
    found = families(metrics.text(STATE, (), {}, "tiny", 0, {}))
    assert values(found["paged:cluster_generation_tokens"])[()] == 4
    for name, count in (("time_to_first_token", 2), ("inter_token_latency", 2), ("e2e_request_latency", 1)):
        family = found[f"paged:cluster_{name}_seconds"]
        assert next(sample.value for sample in family.samples if sample.name.endswith("_count")) == count, name


FIRST = Row("a", "prefill", 40, 40, 0, 1)  # which draws its first token
OFFERED = Offered("a", "lease-a", 40, 3, 300, 9.0)
REASONS = "vllm:request_success"


def test_a_request_that_is_handed_over_has_not_ended_where_it_was_prefilled() -> None:
    metrics = Metrics(INFO, "tiny", "prefill-0")
    told = {"arrived": arrived("a"), "joined": (joined("a"),), "offered": (OFFERED,)}
    metrics.observe(record(1, rows=(FIRST,), **told))
    assert gauge(metrics, "vllm:num_requests_running") == 0
    metrics.observe(record(2, transferred=(transferred("a", "sent"),), left=(Left("a", "handed_over"),)))
    assert counted(metrics, "vllm:time_to_first_token_seconds") == 1
    assert counted(metrics, "vllm:e2e_request_latency_seconds") == 0
    assert counted(metrics, "vllm:request_prompt_tokens") == 0
    assert gauge(metrics, REASONS, finished_reason="handed_over") == 1


def test_what_a_dead_engine_kept_for_another_has_not_failed() -> None:
    metrics = Metrics(INFO, "tiny", "prefill-0")
    told = {"arrived": arrived("a", "b"), "joined": (joined("a"), joined("b")), "offered": (OFFERED,)}
    metrics.observe(record(1, rows=(FIRST,), **told))
    metrics.begin_again()
    assert gauge(metrics, REASONS, finished_reason="error") == 1


def test_a_request_that_came_with_tokens_has_its_first_one_elsewhere() -> None:
    metrics = Metrics(INFO, "tiny", "decode-0")
    came = (Arrived("a", 40, 8, 10.0, generated_tokens=1),)
    metrics.observe(record(1, time=10.0, arrived=came))
    row = Row("a", "decode", 1, 41, 0, 1)
    metrics.observe(record(2, time=10.5, rows=(row,), joined=(joined("a", received_tokens=40, received_blocks=3),)))
    metrics.observe(record(3, time=11.0, rows=(row,), left=(Left("a", "length"),)))
    assert counted(metrics, "vllm:time_to_first_token_seconds") == 0
    assert counted(metrics, "vllm:inter_token_latency_seconds") == 1
    assert counted(metrics, "vllm:e2e_request_latency_seconds") == 1
    assert gauge(metrics, "vllm:prompt_tokens") == 40
    assert gauge(metrics, "vllm:prompt_tokens_by_source", source="external_kv_transfer") == 40
    assert gauge(metrics, "vllm:prompt_tokens_by_source", source="local_compute") == 0
    for name, total in (
        ("request_prefill_kv_computed_tokens", 0),
        ("request_generation_tokens", 3),
        ("request_time_per_output_token_seconds", 0.5),  # two since it came, in one second
    ):
        assert gauge(metrics, f"vllm:{name}", "_sum") == total, name


def gauge(metrics: Metrics, name: str, suffix: str = "", **labels: str) -> float:
    """The one sample with these labels."""
    [family] = [family for family in metrics.families() if family.name == name]
    found = [sample for sample in family.samples if labels.items() <= sample.labels.items()]
    [value] = [sample.value for sample in found if sample.name.endswith(suffix)]
    return value
