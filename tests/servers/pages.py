"""What serving engines answer /metrics with, made from figures that a test sets: names and labels as each one has them.

Written after their documentation, not after `servers.dialects`, which reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["paged-engine", "vllm", "vllm-v0", "sglang", "tgi", "tensorrt-llm", "triton", "llama.cpp"]
KINDS: tuple[Kind, ...] = (
    "paged-engine", "vllm", "vllm-v0", "sglang", "tgi", "tensorrt-llm", "triton", "llama.cpp",
)  # fmt: skip

SHORT = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # bounds in seconds
LONG = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

Sample = tuple[str, dict[str, str], float]  # what follows the family's name, labels, value


@dataclass
class EngineFigures:
    """One engine behind a page, to be changed as a test likes. `kv_usage`: a share of 1; `seen`: values by histogram.

    `live` figures of SGLang are those of tokens as they come; a test that wants them sets them.
    """

    model: str = "m"
    rank: str = "0"
    running: float = 0
    waiting: float = 0
    kv_usage: float = 0.0
    kv_blocks: int = 1000
    block_size: int = 16
    prompt_tokens: float = 0
    cached_tokens: float = 0
    generation_tokens: float = 0
    requests: float = 0
    preemptions: float = 0
    steps: float = 0
    seen: dict[str, Counter[float]] = field(default_factory=dict)

    def serve(
        self, requests: int = 1, prompt: int = 100, generated: int = 20, cached: int = 0, ttft: float = 0.04,
        itl: float = 0.009,
    ) -> None:  # fmt: skip
        """So many requests of one shape began and ended."""
        self.requests += requests
        self.prompt_tokens += requests * prompt
        self.cached_tokens += requests * cached
        self.generation_tokens += requests * generated
        self.steps += generated
        for name, value, times in (
            ("ttft", ttft, 1),
            ("itl", itl, generated - 1),
            ("tpot", itl, 1),
            ("e2el", ttft + itl * (generated - 1), 1),
            ("queue", 0.002, 1),
            ("prompt_length", prompt, 1),
            ("generation_length", generated, 1),
        ):
            self.seen.setdefault(name, Counter())[value] += times * requests
        self.seen.setdefault("step_tokens", Counter())[float(requests)] += generated

    def restart(self) -> None:
        """All of it begins anew: the model and its memory are as they were."""
        fresh = EngineFigures(self.model, self.rank, kv_blocks=self.kv_blocks, block_size=self.block_size)
        self.__dict__.update(fresh.__dict__)


def page(kind: Kind, engines: Sequence[EngineFigures], bulk: int = 0) -> str:
    """A whole page; `bulk` more lines of names that nobody reads, as real pages have them."""
    lines = _PAGES[kind](engines)
    lines += family("python_gc_objects_collected_total", "counter", [("", {"generation": "0"}, 1234.0)])
    names = [f"http_request_duration_highr_seconds_of_route_{number}" for number in range(-(-bulk // 22))]
    for name in names:
        labels = {"handler": "/v1/chat/completions", "method": "POST", "status": "2xx"}
        lines += histogram(name, [(labels, Counter({0.3: 7}))], (*SHORT, *LONG[1:]))[: 22 + 2]
    return "".join(f"{line}\n" for line in lines)


def family(name: str, kind: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP {name} What it says.", f"# TYPE {name} {kind}"]
    for suffix, labels, value in samples:
        told = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
        lines.append(f"{name}{suffix}{{{told}}} {value}" if told else f"{name}{suffix} {value}")
    return lines


def histogram(name: str, series: Iterable[tuple[dict[str, str], Counter[float]]], bounds: Sequence[float]) -> list[str]:
    samples: list[Sample] = []
    for labels, values in series:
        for bound in bounds:
            below = sum(count for value, count in values.items() if value <= bound)
            samples.append(("_bucket", {**labels, "le": str(float(bound))}, float(below)))
        samples += [
            ("_bucket", {**labels, "le": "+Inf"}, float(values.total())),
            ("_sum", labels, float(sum(value * count for value, count in values.items()))),
            ("_count", labels, float(values.total())),
        ]
    return family(name, "histogram", samples)


def _vllm(engines: Sequence[EngineFigures]) -> list[str]:
    return _vllm_names(engines, old=False)


def _vllm_v0(engines: Sequence[EngineFigures]) -> list[str]:
    return _vllm_names(engines, old=True)


def _vllm_names(engines: Sequence[EngineFigures], old: bool) -> list[str]:
    def labels(engine: EngineFigures) -> dict[str, str]:
        return {"model_name": engine.model} if old else {"engine": engine.rank, "model_name": engine.model}

    def each(name: str, kind: str, values: Iterable[float], **more: str) -> list[str]:
        samples = [("", {**labels(engine), **more}, value) for engine, value in zip(engines, values, strict=True)]
        return family(f"vllm:{name}", kind, samples)

    def values(name: str, term: str, bounds: Sequence[float]) -> list[str]:
        return histogram(f"vllm:{name}", [(labels(e), e.seen.get(term, Counter())) for e in engines], bounds)

    usage, prefix = ("gpu_cache_usage_perc", "gpu_") if old else ("kv_cache_usage_perc", "")
    config = [
        (
            "",
            {
                "block_size": str(e.block_size),
                "num_gpu_blocks": str(e.kv_blocks),
                **({} if old else {"engine": e.rank}),
            },
            1.0,
        )
        for e in engines
    ]
    return [
        *each("num_requests_running", "gauge", [e.running for e in engines]),
        *each("num_requests_waiting", "gauge", [e.waiting for e in engines]),
        *each(usage, "gauge", [e.kv_usage for e in engines]),
        *family("vllm:cache_config_info", "gauge", config),
        *each(f"{prefix}prefix_cache_queries_total", "counter", [e.prompt_tokens for e in engines]),
        *each(f"{prefix}prefix_cache_hits_total", "counter", [e.cached_tokens for e in engines]),
        *each("num_preemptions_total", "counter", [e.preemptions for e in engines]),
        *each("prompt_tokens_total", "counter", [e.prompt_tokens for e in engines]),
        *each("generation_tokens_total", "counter", [e.generation_tokens for e in engines]),
        *each("request_success_total", "counter", [e.requests for e in engines], finished_reason="stop"),
        *values("time_to_first_token_seconds", "ttft", SHORT),
        *values("time_per_output_token_seconds" if old else "inter_token_latency_seconds", "itl", SHORT),
        *values("request_time_per_output_token_seconds", "tpot", SHORT),
        *values("e2e_request_latency_seconds", "e2el", LONG),
        *values("request_queue_time_seconds", "queue", LONG),
        *values("request_prompt_tokens", "prompt_length", TOKENS),
        *values("request_generation_tokens", "generation_length", TOKENS),
        *values("iteration_tokens_total", "step_tokens", TOKENS),
    ]


def _paged_engine(engines: Sequence[EngineFigures]) -> list[str]:
    return [
        *_vllm(engines),
        *family("paged:engine_up", "gauge", [("", {}, 1.0)]),
        *family("paged:steps_total", "counter", [("", {}, sum(e.steps for e in engines))]),
    ]


def _sglang(engines: Sequence[EngineFigures]) -> list[str]:
    """Gauges of each rank, counters of the tokenizer in front of all."""

    def each(name: str, kind: str, values: Iterable[float]) -> list[str]:
        samples: list[Sample] = [
            (
                "",
                {
                    "dp_rank": e.rank,
                    "engine_type": "unified",
                    "model_name": e.model,
                    "pp_rank": "0",
                    "tp_rank": tp,
                },
                value,
            )
            for e, value in zip(engines, values, strict=True)
            for tp in ("0", "1")
        ]
        return family(f"sglang:{name}", kind, samples)

    models = list(dict.fromkeys(e.model for e in engines))

    def of_model(name: str, term: str) -> list[str]:
        samples: list[Sample] = [
            ("", {"model_name": model}, sum(getattr(e, term) for e in engines if e.model == model)) for model in models
        ]
        return family(f"sglang:{name}", "counter", samples)

    def values(name: str, term: str, bounds: Sequence[float]) -> list[str]:
        series = []
        for model in models:
            merged: Counter[float] = Counter()
            for engine in engines:
                if engine.model == model:
                    merged += engine.seen.get(term, Counter())
            series.append(({"model_name": model}, merged))
        return histogram(f"sglang:{name}", series, bounds)

    return [
        *each("num_running_reqs", "gauge", [e.running for e in engines]),
        *each("num_queue_reqs", "gauge", [e.waiting for e in engines]),
        *each("token_usage", "gauge", [e.kv_usage for e in engines]),
        *each("num_used_tokens", "gauge", [e.kv_usage * e.kv_blocks * e.block_size for e in engines]),
        *each("max_total_num_tokens", "gauge", [e.kv_blocks * e.block_size for e in engines]),
        *each("cache_hit_rate", "gauge", [e.cached_tokens / (e.prompt_tokens or 1) for e in engines]),
        *each("num_retracted_requests_total", "counter", [e.preemptions for e in engines]),
        *of_model("prompt_tokens_total", "prompt_tokens"),
        *of_model("generation_tokens_total", "generation_tokens"),
        *of_model("num_requests_total", "requests"),
        *family(
            "sglang:cached_tokens_total",
            "counter",
            [("", {"cache_source": "device", "model_name": model}, _cached(engines, model)) for model in models],
        ),
        *values("time_to_first_token_seconds", "ttft", SHORT),
        *values("inter_token_latency_seconds", "itl", SHORT),
        *values("e2e_request_latency_seconds", "e2el", LONG),
        *values("queue_time_seconds", "queue", LONG),
    ]


def _cached(engines: Sequence[EngineFigures], model: str) -> float:
    return sum(e.cached_tokens for e in engines if e.model == model)


def _tgi(engines: Sequence[EngineFigures]) -> list[str]:
    (engine,) = engines

    def values(name: str, term: str, bounds: Sequence[float]) -> list[str]:
        return histogram(f"tgi_{name}", [({}, engine.seen.get(term, Counter()))], bounds)

    return [
        *family("tgi_batch_current_size", "gauge", [("", {}, engine.running)]),
        *family("tgi_queue_size", "gauge", [("", {}, engine.waiting)]),
        *family("tgi_request_success", "counter", [("", {}, engine.requests)]),
        *family("tgi_batch_inference_count", "counter", [("", {"method": "decode"}, engine.steps)]),
        *values("request_input_length", "prompt_length", TOKENS),
        *values("request_generated_tokens", "generation_length", TOKENS),
        *values("request_duration", "e2el", LONG),
        *values("request_queue_duration", "queue", LONG),
        *values("request_mean_time_per_token_duration", "tpot", SHORT),
    ]


def _tensorrt_llm(engines: Sequence[EngineFigures]) -> list[str]:
    (engine,) = engines
    labels = {"engine_type": "trtllm", "model_name": engine.model}

    def one(name: str, kind: str, value: float, **more: str) -> list[str]:
        return family(f"trtllm_{name}", kind, [("", {**labels, **more}, value)])

    def values(name: str, term: str, bounds: Sequence[float]) -> list[str]:
        return histogram(f"trtllm_{name}", [(labels, engine.seen.get(term, Counter()))], bounds)

    used = round(engine.kv_usage * engine.kv_blocks)
    hit = engine.cached_tokens // engine.block_size
    return [
        *one("num_requests_running", "gauge", engine.running),
        *one("num_requests_waiting", "gauge", engine.waiting),
        *one("kv_cache_utilization", "gauge", engine.kv_usage),
        *one("kv_cache_max_blocks", "gauge", engine.kv_blocks),
        *one("kv_cache_used_blocks", "gauge", used),
        *one("kv_cache_free_blocks", "gauge", engine.kv_blocks - used),
        *one("kv_cache_tokens_per_block", "gauge", engine.block_size),
        *one("kv_cache_reused_blocks_total", "counter", hit),
        *one("kv_cache_missed_blocks_total", "counter", engine.prompt_tokens // engine.block_size - hit),
        *one("prompt_tokens_total", "counter", engine.prompt_tokens),
        *one("generation_tokens_total", "counter", engine.generation_tokens),
        *one("request_success_total", "counter", engine.requests, finished_reason="stop"),
        *values("time_to_first_token_seconds", "ttft", SHORT),
        *values("time_per_output_token_seconds", "tpot", SHORT),
        *values("e2e_request_latency_seconds", "e2el", LONG),
        *values("request_queue_time_seconds", "queue", LONG),
    ]


def _triton(engines: Sequence[EngineFigures]) -> list[str]:
    (engine,) = engines

    def gauge(name: str, label: str, values: dict[str, float]) -> list[str]:
        samples: list[Sample] = [
            ("", {label: key, "model": engine.model, "version": "1"}, value) for key, value in values.items()
        ]
        return family(f"nv_trt_llm_{name}", "gauge", samples)

    used = round(engine.kv_usage * engine.kv_blocks)
    return [
        *family("nv_inference_request_success", "counter", [("", {"model": engine.model, "version": "1"}, 0.0)]),
        *gauge(
            "request_metrics",
            "request_type",
            {
                "waiting": engine.waiting,
                "scheduled": engine.running,
                "active": engine.running + engine.waiting,
                "max": 256,
            },
        ),
        *gauge(
            "kv_cache_block_metrics",
            "kv_cache_block_type",
            {
                "fraction": engine.kv_usage,
                "tokens_per": engine.block_size,
                "used": used,
                "free": engine.kv_blocks - used,
                "max": engine.kv_blocks,
                "reused": engine.cached_tokens // engine.block_size,
            },
        ),
        *gauge(
            "inflight_batcher_metrics",
            "inflight_batcher_specific_metric",
            {"generation_requests": engine.running, "total_context_tokens": 0},
        ),
    ]


def _llama_cpp(engines: Sequence[EngineFigures]) -> list[str]:
    (engine,) = engines

    def one(name: str, kind: str, value: float) -> list[str]:
        return family(f"llamacpp:{name}", kind, [("", {}, value)])

    return [
        *one("prompt_tokens_total", "counter", engine.prompt_tokens - engine.cached_tokens),
        *one("prompt_tokens_cached_total", "counter", engine.cached_tokens),
        *one("tokens_predicted_total", "counter", engine.generation_tokens),
        *one("n_decode_total", "counter", engine.steps),
        *one("n_busy_slots_per_decode", "gauge", 1.0),
        *one("requests_processing", "gauge", engine.running),
        *one("requests_deferred", "gauge", engine.waiting),
    ]


_PAGES = {
    "paged-engine": _paged_engine,
    "vllm": _vllm,
    "vllm-v0": _vllm_v0,
    "sglang": _sglang,
    "tgi": _tgi,
    "tensorrt-llm": _tensorrt_llm,
    "triton": _triton,
    "llama.cpp": _llama_cpp,
}
