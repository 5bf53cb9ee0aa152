"""The Prometheus metrics of a cluster: one exposition of all its workers' series, each with the worker's name as vLLM's
label `engine`, and `paged:cluster_...` for what is between them."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from engine.cluster.protocol import ClusterState, Role, TransferDone, TransferPhase, WorkerPhase
from engine.core_client import Sink
from engine.messages import Output
from engine.protocol import ENDINGS, FinishReason
from engine.server.metrics import Metrics
from engine.server.request_metrics import REQUEST_TIME_BUCKETS, TOKEN_TIME_BUCKETS, TTFT_BUCKETS

# Of transfers: a block within one host takes about 0.1 ms, a long prompt between two some seconds.
SECONDS_BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
# What is the server's and no worker's: told once, without a worker's name.
_OF_THE_SERVER = ("process_", "paged:refused_requests")
Values = dict[tuple[str, ...], float]  # by the labels' values


class ClusterMetrics:
    """What has to be counted when it happens; the rest of the exposition is made of the state that there is."""

    def __init__(self) -> None:
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._counted = CollectorRegistry()

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"paged:cluster_{name}", what, buckets=buckets, registry=self._counted)

        self._moved = histogram(
            "transfer_seconds", "From taking blocks for another worker's KV until it had come", SECONDS_BUCKETS
        )
        self._waited = histogram(
            "transfer_wait_seconds", "From a worker's offer until another had blocks for it", SECONDS_BUCKETS
        )
        # Of a request that is handed over a worker has but a part.
        self._ttft = histogram(
            "time_to_first_token_seconds", "From a request's arrival at the server to its first token", TTFT_BUCKETS
        )
        self._itl = histogram(
            "inter_token_latency_seconds",
            "Between a request's tokens, whichever workers they are of",
            TOKEN_TIME_BUCKETS,
        )
        self._e2e = histogram(
            "e2e_request_latency_seconds", "From a request's arrival at the server to its end", REQUEST_TIME_BUCKETS
        )

        # Whatever engines computed of an answer, and twice where one died: each token that was told to its client.
        self._generated = Counter(
            "paged:cluster_generation_tokens", "Tokens of all answers, each once", registry=self._counted
        )

    def timed(self, sink: Sink) -> Sink:
        """A sink for the answers to a prompt that has just come, which measures when they do."""
        begun = time.monotonic()
        newest: dict[str, float] = {}  # of each answer, when its newest token came

        def take(output: Output) -> None:
            now = time.monotonic()
            if output.token_id is not None:
                before = newest.get(output.request)
                if before is None:
                    self._ttft.observe(now - begun)
                else:
                    self._itl.observe(now - before)
                newest[output.request] = now
                self._generated.inc()
            self._generated.inc(sum(len(beam.token_ids) for beam in output.beams))
            if output.finished in ("stop", "length"):
                self._e2e.observe(now - begun)
            sink(output)

        return take

    def ended(self, transfer: TransferDone) -> None:
        """A transfer is over. One that failed has come to nothing, however long that took."""
        if not transfer.error:
            self._waited.observe(transfer.waited)
            self._moved.observe(transfer.moved)

    def text(
        self,
        state: ClusterState,
        workers: Iterable[Metrics],
        refused: Mapping[str, int],
        model: str,
        begun: int,
        ended: Mapping[FinishReason, int],
    ) -> bytes:
        """All of it, each family once. `refused`: what the server has refused since its start, by code. `begun` and
        `ended`: answers, the latter by how they ended."""
        refusals = CounterMetricFamily(
            "paged:refused_requests",
            "Requests and connections that the server refused, by the error's code",
            labels=("model_name", "code"),
        )
        for code, count in refused.items():
            refusals.add_metric((model, code), count)
        return _exposition(
            (
                *self._process.collect(),
                *_together(_of_worker(metrics) for metrics in workers),
                refusals,
                _counter("requests", "Answers that were begun; a prompt with n=4 has four", {(): begun}),
                _counter(
                    "ended_requests",
                    "Answers by how they ended for their clients, each once, however many workers had it",
                    {(reason,): ended.get(reason, 0) for reason in ENDINGS if reason != "handed_over"},
                    "finished_reason",
                ),
                *_of_cluster(state),
                *self._counted.collect(),
            )
        )


def worker_text(metrics: Metrics) -> bytes:
    """The exposition of one worker alone."""
    return _exposition(_of_worker(metrics))


class _Families:
    """Families that are there already, as the exposition takes them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _exposition(families: Iterable[Metric]) -> bytes:
    return generate_latest(_Families(families))


def _of_worker(metrics: Metrics) -> Iterator[Metric]:
    return (family for family in metrics.families() if not family.name.startswith(_OF_THE_SERVER))


def _together(workers: Iterable[Iterable[Metric]]) -> Iterable[Metric]:
    """One family of each name, with the samples of all: what each is, is told once."""
    found: dict[str, Metric] = {}
    for families in workers:
        for family in families:
            if family.name in found:
                found[family.name].samples += family.samples
            else:
                found[family.name] = family
    return found.values()


def _of_cluster(state: ClusterState) -> Iterator[Metric]:
    control, router = state.control, state.router

    there = Counts((worker.role, worker.phase) for worker in state.workers)
    workers: Values = {(role, phase): there[role, phase] for role in get_args(Role) for phase in get_args(WorkerPhase)}
    wanted: Values = {("prefill",): control.prefill, ("decode",): control.decode, ("replica",): control.replicas}
    moving = Counts(transfer.phase for transfer in state.transfers)
    phased: Values = {(phase,): moving[phase] for phase in get_args(TransferPhase)}
    each: defaultdict[str, Values] = defaultdict(dict)
    for worker in state.workers:
        of = (worker.name,)
        each["load"][of], each["routed"][of] = worker.load, worker.routed
        each["sending"][of], each["receiving"][of] = worker.sending, worker.receiving
        each["requests"][of], each["blocks"][of] = worker.received.requests, worker.received.blocks
        each["nbytes"][of], each["failed"][of] = worker.received.nbytes, worker.received.failed
        each["expired"][of] = worker.sent.expired

    yield _gauge("workers", "Workers by role and phase", workers, "role", "phase")
    yield _gauge("wanted_workers", "Workers that there are to be, by role", wanted, "role")
    yield _gauge(
        "separate",
        "1 while prefill workers are to prefill what others decode, where there are both",
        {(): control.separate},
    )
    yield _gauge("load_tokens", "Tokens that a worker has yet to compute, as the router has it", each["load"], "engine")
    yield _gauge("sending_requests", "Prefilled, and held until another worker has the KV", each["sending"], "engine")
    yield _gauge("receiving_requests", "Have blocks that KV is on its way into", each["receiving"], "engine")
    yield _gauge("transfers", "Requests between two workers, by how far they are", phased, "phase")
    yield _counter("transferred_requests", "Whose KV came from another worker", each["requests"], "engine")
    yield _counter("transferred_blocks", "KV blocks that came from another worker", each["blocks"], "engine")
    yield _counter("transferred_bytes", "Of these blocks", each["nbytes"], "engine")
    yield _counter(
        "failed_transfers", "KV that did not come, and was computed again by this engine", each["failed"], "engine"
    )
    yield _counter("expired_leases", "Offers that nobody took in time", each["expired"], "engine")
    yield _counter("routed_requests", "Requests sent to a worker", each["routed"], "engine")
    for name, what, value in (
        ("router_decisions", "Looks for a worker; a request that is handed over takes some", router.decisions),
        ("router_decision_seconds", "Time that choosing took", router.decision_seconds),
        ("routed_by_prefix", "Choices that followed a cached prefix", router.by_prefix),
        ("routed_past_prefix", "Choices that would have, but for the load there", router.bounded),
        ("prefilled_locally", "Prompts prefilled where they decode, past the prefill workers", router.local),
        ("handed_over_requests", "Requests that went from a prefill worker to another", router.handed_over),
        (
            "recovered_requests",
            "Went on elsewhere, after a death, a drain or an overdue transfer",
            router.recovered,
        ),
    ):
        yield _counter(name, what, {(): value})
    yield _gauge("indexed_blocks", "Cached blocks that the router knows of", {(): router.indexed_blocks})
    if router.imbalance is not None:
        yield _gauge(
            "imbalance",
            "Prompt tokens sent to the busiest worker of a pool, over the mean of that pool; of the pools the most",
            {(): router.imbalance},
        )


def _gauge(name: str, what: str, values: Values, *labels: str) -> Metric:
    family = GaugeMetricFamily(f"paged:cluster_{name}", what, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def _counter(name: str, what: str, values: Values, *labels: str) -> Metric:
    family = CounterMetricFamily(f"paged:cluster_{name}", what, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family
