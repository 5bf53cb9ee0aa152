"""What servers tell in their /metrics, read into one set of terms. Pure.

Each server has names of its own, and they change between versions: the first one that is there counts. What a server
does not tell is absent, never 0. Counters are added up over engines, shares of KV memory weighted by its size, and
what every rank of one engine repeats is counted once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Samples = Mapping[str, Mapping[Labels, float]]  # by name, then by labels

# Ranks of one engine, and processes of one server, repeat the same value.
_REPEATED = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


@dataclass(frozen=True, slots=True)
class Dialect:
    """A server's names, by term. In each tuple the first one that is there counts.

    Of `counters` a name may be several, joined by `+`, of which all must be there. `kv_usage` is a share of 1;
    `kv_capacity` is the gauge that weights it, or the label of one after `#`.
    """

    kind: str
    prefix: str  # of all its names
    counters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gauges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kv_usage: tuple[str, ...] = ()
    kv_capacity: str = ""
    histograms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# Where the names are from: each project's documentation and source, 2023 to 2026.
_VLLM = Dialect(
    kind="vllm",
    prefix="vllm:",
    counters={
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "requests": ("vllm:request_success_total",),
        "preemptions": ("vllm:num_preemptions_total",),
        "prefix_hit_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "prefix_queried_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    },
    gauges={"running": ("vllm:num_requests_running",), "waiting": ("vllm:num_requests_waiting",)},
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    kv_capacity="vllm:cache_config_info#num_gpu_blocks",
    histograms={
        "ttft": ("vllm:time_to_first_token_seconds",),
        "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot": ("vllm:request_time_per_output_token_seconds",),
        "e2el": ("vllm:e2e_request_latency_seconds",),
        "queue": ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
    },
)
_SGLANG = Dialect(
    kind="sglang",
    prefix="sglang:",
    counters={
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
        "requests": ("sglang:num_requests_total",),
        "preemptions": ("sglang:num_retracted_requests_total",),
        "prefix_hit_tokens": ("sglang:cached_tokens_total",),
        "prefix_queried_tokens": ("sglang:prompt_tokens_total",),
    },
    gauges={"running": ("sglang:num_running_reqs",), "waiting": ("sglang:num_queue_reqs",)},
    kv_usage=("sglang:token_usage",),
    kv_capacity="sglang:max_total_num_tokens",
    histograms={
        "ttft": ("sglang:time_to_first_token_seconds",),
        "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "e2el": ("sglang:e2e_request_latency_seconds",),
        "queue": ("sglang:queue_time_seconds",),
    },
)
_TGI = Dialect(
    kind="tgi",
    prefix="tgi_",
    counters={
        "prompt_tokens": ("tgi_request_input_length_sum",),
        "generation_tokens": ("tgi_request_generated_tokens_sum",),
        "requests": ("tgi_request_success_total", "tgi_request_success"),
    },
    gauges={"running": ("tgi_batch_current_size",), "waiting": ("tgi_queue_size",)},
    histograms={
        "tpot": ("tgi_request_mean_time_per_token_duration",),
        "e2el": ("tgi_request_duration",),
        "queue": ("tgi_request_queue_duration",),
    },
)
_LLAMA_CPP = Dialect(
    kind="llama.cpp",
    prefix="llamacpp:",
    counters={
        # Its prompt_tokens_total leaves out what was found in the cache.
        "prompt_tokens": ("llamacpp:prompt_tokens_total+llamacpp:prompt_tokens_cached_total",),
        "generation_tokens": ("llamacpp:tokens_predicted_total",),
        "prefix_hit_tokens": ("llamacpp:prompt_tokens_cached_total",),
        "prefix_queried_tokens": ("llamacpp:prompt_tokens_total+llamacpp:prompt_tokens_cached_total",),
    },
    gauges={"running": ("llamacpp:requests_processing",), "waiting": ("llamacpp:requests_deferred",)},
    kv_usage=("llamacpp:kv_cache_usage_ratio",),
)
_TENSORRT_LLM = Dialect(
    kind="tensorrt-llm",
    prefix="trtllm_",
    counters={
        "prompt_tokens": ("trtllm_prompt_tokens_total",),
        "generation_tokens": ("trtllm_generation_tokens_total",),
        "requests": ("trtllm_request_success_total",),
        "prefix_hit_tokens": ("trtllm_prompt_cached_tokens_total",),
        "prefix_queried_tokens": ("trtllm_prompt_tokens_total",),
        "prefix_hit_blocks": ("trtllm_kv_cache_reused_blocks_total",),
        "prefix_queried_blocks": ("trtllm_kv_cache_reused_blocks_total+trtllm_kv_cache_missed_blocks_total",),
    },
    gauges={
        "running": ("trtllm_num_requests_running", "trtllm_num_active_requests"),
        "waiting": ("trtllm_num_requests_waiting", "trtllm_num_queued_requests", "trtllm_server_queue_length"),
    },
    kv_usage=("trtllm_kv_cache_utilization",),
    kv_capacity="trtllm_kv_cache_max_blocks",
    histograms={
        "ttft": ("trtllm_time_to_first_token_seconds",),
        "tpot": ("trtllm_time_per_output_token_seconds",),
        "e2el": ("trtllm_e2e_request_latency_seconds",),
        "queue": ("trtllm_request_queue_time_seconds",),
    },
)
DIALECTS = (_VLLM, _SGLANG, _TGI, _LLAMA_CPP, _TENSORRT_LLM)
COUNTERS = tuple(dict.fromkeys(term for dialect in DIALECTS for term in dialect.counters))
GAUGES = ("running", "waiting", "kv_usage")
HISTOGRAMS = ("ttft", "itl", "tpot", "e2el", "queue")


@dataclass(frozen=True, slots=True)
class Buckets:
    """A Prometheus histogram: how many values are at most each bound, and their sum, in the server's unit."""

    upto: Mapping[float, float]
    total: float


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a server: its counters by term and series, its gauges as one number, its histograms by series."""

    kind: str
    counters: Mapping[str, Mapping[Labels, float]]
    gauges: Mapping[str, float]
    histograms: Mapping[str, Mapping[Labels, Buckets]]


def read(text: str, gauges_alone: bool = False) -> Reading | None:
    """One scrape; None if no server known here speaks so. Raises ValueError for a line that cannot be read."""
    for dialect in DIALECTS:
        if dialect.prefix not in text:
            continue
        samples = _samples(text, _gauge_names(dialect) if gauges_alone else _names(dialect))
        if samples:
            return Reading(
                kind=dialect.kind,
                counters={} if gauges_alone else _counters(dialect, samples),
                gauges=_gauges(dialect, samples),
                histograms={} if gauges_alone else _histograms(dialect, samples),
            )
    return None


def _gauge_names(dialect: Dialect) -> frozenset[str]:
    capacity = dialect.kv_capacity.partition("#")[0]
    return frozenset({name for names in dialect.gauges.values() for name in names} | {*dialect.kv_usage, capacity})


def _names(dialect: Dialect) -> frozenset[str]:
    counters = {name for names in dialect.counters.values() for sum_of in names for name in sum_of.split("+")}
    histograms = {
        f"{name}_{part}"
        for names in dialect.histograms.values()
        for name in names
        for part in ("bucket", "sum", "count")
    }
    return _gauge_names(dialect) | counters | histograms


def _samples(text: str, names: frozenset[str]) -> dict[str, dict[Labels, float]]:
    """Those of the names alone: the rest of a page, often a thousand lines, is not parsed. Repetitions are one."""
    lines = [line for line in text.splitlines() if (found := _NAME.match(line)) is not None and found[0] in names]
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families("".join(f"{line}\n" for line in lines)):
        for sample in family.samples:
            if math.isnan(sample.value):
                continue
            series = samples.setdefault(sample.name, {})
            labels = frozenset(item for item in sample.labels.items() if item[0] not in _REPEATED)
            series[labels] = max(series.get(labels, -math.inf), sample.value)
    return samples


def _first(names: Iterable[str], samples: Samples) -> str | None:
    return next((name for name in names if name in samples), None)


def _counters(dialect: Dialect, samples: Samples) -> dict[str, dict[Labels, float]]:
    counters: dict[str, dict[Labels, float]] = {}
    for term, alternatives in dialect.counters.items():
        for names in (alternative.split("+") for alternative in alternatives):
            if all(name in samples for name in names):
                counters[term] = {
                    labels | {("__name__", name)}: value
                    for name in names
                    for labels, value in _parts(samples[name]).items()
                }
                break
    return counters


def _parts(series: Mapping[Labels, float]) -> Mapping[Labels, float]:
    """Without the series that is the sum of the others, as SGLang tells of its cached tokens."""
    if all(("cache_source", "total") in labels for labels in series):
        return series
    return {labels: value for labels, value in series.items() if ("cache_source", "total") not in labels}


def _gauges(dialect: Dialect, samples: Samples) -> dict[str, float]:
    gauges = {
        term: sum(samples[name].values())
        for term, names in dialect.gauges.items()
        if (name := _first(names, samples)) is not None
    }
    if (name := _first(dialect.kv_usage, samples)) is not None:
        gauges["kv_usage"] = _weighted(samples[name], _capacities(dialect.kv_capacity, samples))
    return gauges


def _engine(labels: Labels) -> str:
    """Which of a server's engines it is of."""
    known = dict(labels)
    return known.get("engine") or known.get("dp_rank") or ""


def _capacities(name: str, samples: Samples) -> dict[str, float]:
    """The KV memory of each engine, in whatever unit."""
    gauge, _, label = name.partition("#")
    capacities = {}
    for labels, value in samples.get(gauge, {}).items():
        try:
            capacities[_engine(labels)] = float(dict(labels)[label]) if label else value
        except (KeyError, ValueError):  # "None" before the memory was measured
            continue
    return capacities


def _weighted(shares: Mapping[Labels, float], capacities: Mapping[str, float]) -> float:
    """The mean share, by capacity where that of every engine is known."""
    weights = {labels: capacities.get(_engine(labels), 0.0) for labels in shares}
    if not all(weight > 0 for weight in weights.values()):
        weights = dict.fromkeys(shares, 1.0)
    return sum(share * weights[labels] for labels, share in shares.items()) / sum(weights.values())


def _histograms(dialect: Dialect, samples: Samples) -> dict[str, dict[Labels, Buckets]]:
    histograms = {}
    for term, names in dialect.histograms.items():
        if (name := _first((f"{name}_bucket" for name in names), samples)) is None:
            continue
        upto: dict[Labels, dict[float, float]] = {}
        for labels, value in samples[name].items():
            bound = dict(labels).get("le")
            if bound is not None:
                upto.setdefault(labels - {("le", bound)}, {})[float(bound)] = value
        totals = samples.get(f"{name.removesuffix('_bucket')}_sum", {})
        histograms[term] = {labels: Buckets(bounds, totals.get(labels, 0.0)) for labels, bounds in upto.items()}
    return histograms
