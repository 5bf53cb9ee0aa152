"""Prometheus metrics. What they tell of the engine is from its step records alone, so that they cannot disagree with
the stream; restarts, refused requests and the process's own figures are the API's.

vLLM's names, labels and buckets where vLLM has a metric, so that its dashboards work; `paged:` for the rest.
Times are on the engine's clock: TTFT begins when the core got the request, and network time is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from engine.protocol import (
    ENDINGS,
    Allocation,
    Batching,
    EngineInfo,
    FinishReason,
    Parts,
    PoolTotals,
    PreemptedBy,
    Record,
    RequestState,
    Snapshot,
    WasteLedger,
)
from engine.server.refusals import CODES
from engine.server.request_metrics import TOKEN_COUNT_BUCKETS, Family, RequestHistograms, RequestTimes


class Total:
    """A counter that knows its value, so that it can catch up with a total told by the engine, which counts from 0
    when it is started again."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._value = 0.0  # of the engine that lives

    def add(self, count: float) -> None:
        self._value += count
        self._counter.inc(count)

    def raise_to(self, total: float) -> None:
        self.add(total - self._value)

    def begin_again(self) -> None:
        self._value = 0.0


class Metrics:
    """Takes every record in order; `text()` is the exposition.

    When records are missing, nothing is taken until `resume` gets a snapshot: what was lost is counted in
    `paged:lost_records_total` and is in no histogram. `engine` is what this one is called beside others.
    """

    def __init__(self, info: EngineInfo, model_name: str, engine: str = "0") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._labels = {"model_name": model_name, "engine": engine}
        self._totals: list[Total] = []
        self._num_blocks = info.num_blocks
        self._live: dict[str, RequestTimes] = {}
        self._running: set[str] = set()
        self._held: set[str] = set()
        self._sending: set[str] = set()
        self._receiving: set[str] = set()
        self._seq = 0
        self.lost = False

        self._running_gauge = self._gauge("vllm:num_requests_running", "Requests in the batch")
        self._waiting_gauge = self._gauge("vllm:num_requests_waiting", "Requests in the queue")
        self._held_gauge = self._gauge("paged:num_requests_held", "Finished requests that keep their row (static)")
        self._sending_gauge = self._gauge(
            "paged:num_requests_sending", "Requests that go on in another engine, which has yet to take their blocks"
        )
        self._receiving_gauge = self._gauge(
            "paged:num_requests_receiving", "Requests whose KV is on its way here from another engine"
        )
        self._kv_usage = self._gauge("vllm:kv_cache_usage_perc", "Share of blocks that requests hold, 0 to 1")
        self._queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self._hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._prompt = self._counter(
            "vllm:prompt_tokens", "Prompt tokens of requests whose first token came; forks share theirs"
        )
        by_source = self._counters(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens of requests whose first token came: computed, found in the prefix cache, or from another "
            "engine",
            "source",
            ("local_compute", "local_cache_hit", "external_kv_transfer"),
        )
        self._computed, self._found = by_source["local_compute"], by_source["local_cache_hit"]
        self._prompt_received = by_source["external_kv_transfer"]
        self._prompt_cached = self._counter("vllm:prompt_tokens_cached", "Of vllm:prompt_tokens, found in a cache")
        self._hits_by_tier = self._counters(
            "vllm:prompt_tokens_cached_by_source", "vllm:prefix_cache_hits by what had them", "source", ("device",)
        )
        self._external_queries = self._counter(
            "vllm:external_prefix_cache_queries", "Tokens whose KV was asked of another engine"
        )
        self._external_hits = self._counter(
            "vllm:external_prefix_cache_hits", "Of vllm:external_prefix_cache_queries, those whose KV came"
        )
        sleep = self._gauges(
            "vllm:engine_sleep_state", "1 for the state in force; this engine never sleeps", "sleep_state"
        )
        for state in ("awake", "weights_offloaded", "discard_all"):
            sleep.labels(sleep_state=state, **self._labels).set(state == "awake")
        self._generated = self._counter("vllm:generation_tokens", "Tokens generated")
        self._preemptions = self._counter("vllm:num_preemptions", "Requests that lost their blocks")
        self._preemptions_by = self._counters(
            "paged:preemptions",
            "Requests that lost their blocks, by how they come back",
            "by",
            get_args(PreemptedBy),
        )
        self._ended = self._counters(
            "vllm:request_success", "Requests that ended, by reason", "finished_reason", ENDINGS
        )
        self._requests = RequestHistograms(self._histogram)
        self._iteration = self._histogram(
            "vllm:iteration_tokens_total", "Tokens computed per step", TOKEN_COUNT_BUCKETS
        )
        cache_config = {
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_blocks),
            "kv_cache_size_tokens": str(info.num_blocks * info.block_size),
            "cache_dtype": info.dtype,
            "engine": engine,
        }
        Gauge(
            "vllm:cache_config_info", "The block pool, in labels", tuple(cache_config), registry=self._registry
        ).labels(**cache_config).set(1)

        self._steps = self._counter("paged:steps", "Steps that computed something")
        self._parts = self._counters(
            "paged:forward_part_seconds",
            "Time of the model's forward by part, where measured",
            "part",
            Parts.__struct_fields__,
        )
        self._up = self._gauge("paged:engine_up", "1 while an engine serves, 0 while another one is started")
        # No engine's own count: it goes on.
        restarts = Counter(
            "paged:engine_restarts",
            "How often an engine died and another one was started, also where that one did not come to serve",
            tuple(self._labels),
            registry=self._registry,
        )
        self._restarts = Total(restarts.labels(**self._labels))
        refused = Counter(
            "paged:refused_requests",
            "Requests and connections that the server refused, by the error's code",
            (*self._labels, "code"),
            registry=self._registry,
        )
        self._refused = {code: Total(refused.labels(code=code, **self._labels)) for code in CODES}
        self._lost_records = self._counter("paged:lost_records", "Step records these metrics never got")
        self._blocks = self._gauges("paged:blocks", "Blocks by state", "state")
        self._waste = self._gauges("paged:slots", "Slots held by requests, and waste", "kind")
        self._logical = self._gauge("paged:logical_blocks", "Sum of the lengths of all block tables")
        self._physical = self._gauge("paged:physical_blocks", "Distinct blocks in all block tables")
        self._saved_bytes = self._gauge("paged:saved_bytes", "KV bytes that sharing saves now")
        self._resumed_queries = self._counter("paged:resumed_prefix_cache_queries", "Looked up after preemption")
        self._resumed_hits = self._counter("paged:resumed_prefix_cache_hits", "Found after preemption")
        self._hit_causes = self._counters(
            "paged:prefix_cache_tokens_by_cause",
            "Tokens looked up. decoded: found in blocks with generated tokens; copied: found by copying the start of "
            "a block that goes on otherwise; evicted: not found, though cached once",
            "cause",
            ("decoded", "copied", "evicted"),
        )
        self._forked_tokens = self._counter("paged:forked_tokens", "Prompt tokens that forks share with their parents")
        self._forks = self._counter("paged:forks", "Requests forked off another's blocks")
        self._copied_blocks = self._counter("paged:copied_blocks", "Blocks copied, on write or for a partial hit")
        self._swapped_out = self._counter("paged:swapped_out_blocks", "Blocks copied to host memory")
        self._swapped_in = self._counter("paged:swapped_in_blocks", "Blocks copied back from host memory")
        self._recomputed = self._counter("paged:recomputed_tokens", "Tokens whose KV was lost to preemption")
        self._received = self._counter("paged:received_requests", "Requests whose KV came from another engine")
        self._received_blocks = self._counter("paged:received_blocks", "Blocks filled by another engine's KV")
        self._failed_transfers = self._counter(
            "paged:failed_transfers", "Transfers of KV from or to another engine that came to nothing"
        )
        self._expired = self._counter("paged:expired_requests", "Requests whose deadline passed")
        self._host_used = self._gauge("paged:host_blocks_used", "Blocks of the swap space in use")
        self._gauge("paged:host_blocks", "Blocks of the swap space").set(info.num_host_blocks)
        self._batching = self._gauges("paged:batching", "1 for the batching mode in force", "mode")
        self._allocation = self._gauges("paged:allocation", "1 for the allocation mode in force", "mode")

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def families(self) -> Iterable[Metric]:
        """What the exposition is of, to be told together with others'."""
        return self._registry.collect()

    def observe(self, record: Record) -> None:
        """Take the next record; sets `lost` if records before it are missing."""
        if record.seq <= self._seq:
            return  # a snapshot told it already
        if record.seq != self._seq + 1:
            self.lost = True
        if self.lost:
            return
        self._seq = record.seq
        self._take_events(record)
        self._take_rows(record)
        self._copied_blocks.add(len(record.copies))
        if record.parts is not None:
            for part, counter in self._parts.items():
                counter.add(getattr(record.parts, part))
        for offered in record.offered:
            self._running.discard(offered.request)
            self._sending.add(offered.request)
        for left in (*record.held, *record.left):
            for names in (self._running, self._sending, self._receiving):
                names.discard(left.request)
            self._end(left.request, left.reason, record.time)
        self._held.update(left.request for left in record.held)
        self._held.difference_update(record.released)
        self._take_state(record)

    def resume(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot after records were lost."""
        self._lost_records.add(max(0, snapshot.seq - self._seq))
        self._seq = snapshot.seq
        self.lost = False
        counters = snapshot.counters
        ended = {reason: getattr(counters, name) for reason, name in ENDINGS.items()}
        self._generated.raise_to(counters.sampled_tokens)
        self._preemptions.raise_to(counters.preemptions)
        self._preemptions_by["swap"].raise_to(counters.swap_preemptions)
        self._preemptions_by["recompute"].raise_to(counters.preemptions - counters.swap_preemptions)
        self._steps.raise_to(counters.steps)
        self._forks.raise_to(counters.forks)
        self._copied_blocks.raise_to(counters.copied_blocks)
        self._swapped_out.raise_to(counters.swapped_out_blocks)
        self._swapped_in.raise_to(counters.swapped_in_blocks)
        self._recomputed.raise_to(counters.recomputed_tokens)
        self._received.raise_to(counters.received)
        self._received_blocks.raise_to(counters.received_blocks)
        self._external_hits.raise_to(counters.received_tokens)
        self._failed_transfers.raise_to(counters.transfers_failed)
        self._expired.raise_to(counters.expired)
        for reason, count in ended.items():
            self._ended[reason].raise_to(count)
        self._running = {r.request for r in snapshot.requests if r.status == "running"}
        self._held = {r.request for r in snapshot.requests if r.status == "held"}
        self._sending = {r.request for r in snapshot.requests if r.status == "sending"}
        self._receiving = {r.request for r in snapshot.requests if r.status == "receiving"}
        self._live = {state.request: self._known(state) for state in snapshot.requests if state.status != "held"}
        for times in self._live.values():
            times.family.live = 0
        for times in self._live.values():
            times.family.live += 1
        self._take_state(snapshot)

    def begin_again(self) -> None:
        """Another engine serves, with an empty pool: counters go on, and what lived in the last one has ended with
        it."""
        self._end_life()
        for total in self._totals:
            total.begin_again()
        self._seq, self.lost = 0, False
        self._blocks.labels(state="free", **self._labels).set(self._num_blocks)

    def set_up(self, up: bool, restarts: int) -> None:
        """Whether an engine serves now, and how often one was started again. Without one nothing runs and nothing
        waits."""
        self._up.set(up)
        self._restarts.raise_to(restarts)
        if not up:
            self._end_life()

    def set_refused(self, counts: Mapping[str, int]) -> None:
        """What the server has refused since its start, by `refusals.CODES`."""
        for code, total in self._refused.items():
            total.raise_to(counts[code])

    def _end_life(self) -> None:
        self._ended["error"].add(len(self._live.keys() - self._sending))  # those go on elsewhere
        lived: dict[str, RequestTimes] | set[str]
        for lived in (self._live, self._running, self._held, self._sending, self._receiving):
            lived.clear()
        for gauge in (
            *(self._running_gauge, self._held_gauge, self._waiting_gauge, self._kv_usage),
            *(self._sending_gauge, self._receiving_gauge),
            *(self._logical, self._physical, self._saved_bytes, self._host_used),
            *(self._blocks.labels(state=name, **self._labels) for name in PoolTotals.__struct_fields__),
            *(self._waste.labels(kind=name, **self._labels) for name in WasteLedger.__struct_fields__),
        ):
            gauge.set(0)

    def _known(self, state: RequestState) -> RequestTimes:
        """What a snapshot and the records before the loss tell of one request."""
        before = self._live.get(state.request)
        return RequestTimes(
            arrived=state.arrived,
            prompt_tokens=state.prompt_tokens,
            max_tokens=state.max_tokens,
            family=before.family if before is not None else Family(),
            found=before.found if before is not None else 0,
            shared=before.shared if before is not None else 0,
            joined=before.joined if before is not None else None,
            first_token=state.first_token,
            last_token=None,  # the next gap between tokens is not one between two neighbours
            generated=state.num_tokens - state.prompt_tokens,
            came_with=before.came_with if before is not None else 0,
            received=before.received if before is not None else 0,
            preemptions=state.preemptions,
        )

    def _take_events(self, record: Record) -> None:
        for arrived in record.arrived:
            parent = self._live.get(arrived.parent or "")
            family = Family() if parent is None else parent.family
            family.live += 1
            times = RequestTimes(arrived.time, arrived.prompt_tokens, arrived.max_tokens, family)
            if arrived.generated_tokens:  # by another engine, which has told of the first one
                times.first_token, times.generated = arrived.time, arrived.generated_tokens
                times.came_with = arrived.generated_tokens
            self._live[arrived.request] = times
        for coming in record.receiving:
            self._receiving.add(coming.request)
            self._external_queries.add(coming.tokens)
        for ended in record.transferred:
            self._receiving.discard(ended.request)
            self._failed_transfers.add(bool(ended.error))
        if record.joined:
            durations = record.durations
            begun = record.time - sum(msgspec.structs.astuple(durations)) + durations.publish
            for joined in record.joined:
                self._running.add(joined.request)
                self._forks.add(joined.parent is not None)
                self._swapped_in.add(joined.swapped_blocks)
                self._received.add(bool(joined.received_blocks))
                self._received_blocks.add(joined.received_blocks)
                self._external_hits.add(joined.received_tokens)
                joining = self._live.get(joined.request)
                if joining is not None and joining.joined is None:
                    joining.joined = max(begun, joining.arrived)
                    if not joined.resumed:
                        joining.received = joined.received_tokens
                        # It may find generated tokens too, if it came with some.
                        joining.found = min(joined.cached_tokens + joined.received_tokens, joining.prompt_tokens)
                        joining.shared = min(joined.shared_tokens, joining.prompt_tokens)
                        self._requests.joined(joining, joining.joined)
        for preempted in record.preempted:
            self._preemptions.add(1)
            self._preemptions_by[preempted.by].add(1)
            self._swapped_out.add(preempted.swapped_blocks)
            self._recomputed.add(preempted.lost_tokens if preempted.by == "recompute" else 0)
            self._running.discard(preempted.request)
            if (loser := self._live.get(preempted.request)) is not None:
                loser.preemptions += 1

    def _take_rows(self, record: Record) -> None:
        if not record.rows:
            return
        self._steps.add(1)
        self._iteration.observe(sum(row.tokens for row in record.rows))
        for row in record.rows:
            if not row.sampled:
                continue
            self._generated.add(row.sampled)
            times = self._live.get(row.request)
            if times is None:
                continue
            if times.generated == times.came_with:
                if row.kind == "fork":  # one that is handed over with its parent never joins
                    times.shared = times.prompt_tokens
                self._prompt.add(times.prompt_tokens - times.shared)
                self._found.add(times.found - times.received)
                self._prompt_received.add(times.received)
                self._prompt_cached.add(times.found)
                self._computed.add(times.computed)
            self._requests.sampled(times, row.sampled, record.time)

    def _end(self, request: str, reason: FinishReason, now: float) -> None:
        self._ended[reason].add(1)
        self._expired.add(reason == "deadline")
        times = self._live.pop(request, None)
        if times is None:
            return
        if reason == "handed_over":  # it has not ended, but here
            times.family.live -= 1
        else:
            self._requests.ended(times, now)

    def _take_state(self, state: Record | Snapshot) -> None:
        self._running_gauge.set(len(self._running))
        self._held_gauge.set(len(self._held))
        self._sending_gauge.set(len(self._sending))
        self._receiving_gauge.set(len(self._receiving))
        self._waiting_gauge.set(state.queue.length)
        pool, sharing = state.pool, state.sharing
        self._kv_usage.set((self._num_blocks - pool.free - pool.cached) / self._num_blocks)
        for name in pool.__struct_fields__:
            self._blocks.labels(state=name, **self._labels).set(getattr(pool, name))
        for name in state.waste.__struct_fields__:
            self._waste.labels(kind=name, **self._labels).set(getattr(state.waste, name))
        self._logical.set(sharing.logical_blocks)
        self._physical.set(sharing.physical_blocks)
        self._saved_bytes.set(sharing.saved_bytes)
        totals = (
            sharing.looked_up_tokens,
            sharing.found_tokens,
            sharing.resumed_looked_up_tokens,
            sharing.resumed_found_tokens,
            sharing.forked_tokens,
        )
        counters = (self._queries, self._hits, self._resumed_queries, self._resumed_hits, self._forked_tokens)
        for counter, total in zip(counters, totals, strict=True):
            counter.raise_to(total)
        self._hits_by_tier["device"].raise_to(sharing.found_tokens)
        for cause, counter in self._hit_causes.items():
            counter.raise_to(getattr(sharing, f"{cause}_tokens"))
        self._host_used.set(state.host_blocks)
        for batching in get_args(Batching):
            self._batching.labels(mode=batching, **self._labels).set(batching == state.control.batching)
        for allocation in get_args(Allocation):
            self._allocation.labels(mode=allocation, **self._labels).set(allocation == state.control.allocation)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, tuple(self._labels), registry=self._registry).labels(**self._labels)

    def _gauges(self, name: str, text: str, label: str) -> Gauge:
        return Gauge(name, text, (*self._labels, label), registry=self._registry)

    def _counter(self, name: str, text: str) -> Total:
        return self._total(Counter(name, text, tuple(self._labels), registry=self._registry).labels(**self._labels))

    def _counters(self, name: str, text: str, label: str, values: Iterable[str]) -> dict[str, Total]:
        counter = Counter(name, text, (*self._labels, label), registry=self._registry)
        return {value: self._total(counter.labels(**{label: value}, **self._labels)) for value in values}

    def _total(self, counter: Counter) -> Total:
        self._totals.append(Total(counter))
        return self._totals[-1]

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, tuple(self._labels), buckets=buckets, registry=self._registry).labels(
            **self._labels
        )
