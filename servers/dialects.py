"""Each server's names for the terms, as its documentation and source have had them from 2023 to 2026. Data alone.

Names change between versions: of each tuple the first one that a page has counts. How one is written:

- `name`, a metric's; of a counter or gauge with more labels than those of an engine, the sum over these: of a share
  and of the right side of a product, what all of them tell alike;
- `name{label=value}`, only the series with that label;
- `name#label`, the number that a label of an info metric holds (facts: its text);
- `a + b`, `a * b`, `a / b`, engine by engine; of counters only sums, and all parts must be there.

A name that ends in `_ms` is read in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_PLAIN = ("/metrics",)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A server's names, by term.

    `marks`: what all must be somewhere in a page, the first of which is how its names begin; `spellings` are others
    of it, as forwarders write it. `missing`: by panel or term, why this server cannot tell, in words for a screen;
    `notes`: what a reader of a term must know.
    """

    kind: str
    title: str
    marks: tuple[str, ...]
    counters: Mapping[str, tuple[str, ...]]
    gauges: Mapping[str, tuple[str, ...]]
    histograms: Mapping[str, tuple[str, ...]]
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spellings: tuple[str, ...] = ()
    paths: tuple[str, ...] = _PLAIN
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


_NO_BLOCKS = "its metrics do not tell single blocks"
_NO_WASTE = "its metrics do not tell how full blocks are"
_AT_END = "counted when a request ends"
_PROCESS = {"process_start": ("process_start_time_seconds",)}

_VLLM = Dialect(
    kind="vllm",
    title="vLLM",
    marks=("vllm:",),
    spellings=("vllm_",),
    counters={
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "live_prompt_tokens": ("vllm:prompt_tokens_total",),
        "live_generation_tokens": ("vllm:generation_tokens_total",),
        "computed_prompt_tokens": ("vllm:prompt_tokens_by_source_total{source=local_compute}",),
        "cached_prompt_tokens": (
            "vllm:prompt_tokens_by_source_total{source=local_cache_hit}",
            "vllm:prompt_tokens_cached_total",
        ),
        "requests": ("vllm:request_success_total",),
        "preemptions": ("vllm:num_preemptions_total",),
        "prefix_queried_tokens": ("vllm:prefix_cache_queries_total",),
        "prefix_hit_tokens": ("vllm:prefix_cache_hits_total",),
        # Of these, early versions counted blocks and later ones tokens: their ratio is right in both.
        "prefix_queried_blocks": ("vllm:gpu_prefix_cache_queries_total",),
        "prefix_hit_blocks": ("vllm:gpu_prefix_cache_hits_total",),
    },
    gauges={
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "swapped": ("vllm:num_requests_swapped",),
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        # Blocks times their size is too much where layers of several kinds share the memory.
        "kv_capacity": (
            "vllm:cache_config_info#kv_cache_size_tokens",
            "vllm:cache_config_info#num_gpu_blocks * vllm:cache_config_info#block_size",
        ),
        "hit_rate": ("vllm:gpu_prefix_cache_hit_rate",),
    },
    histograms={
        "ttft": ("vllm:time_to_first_token_seconds",),
        "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot": ("vllm:request_time_per_output_token_seconds",),
        "e2el": ("vllm:e2e_request_latency_seconds",),
        "queue": ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
        "prefill": ("vllm:request_prefill_time_seconds",),
        "decode": ("vllm:request_decode_time_seconds",),
        "step_tokens": ("vllm:iteration_tokens_total",),
        "prompt_length": ("vllm:request_prompt_tokens",),
        "generation_length": ("vllm:request_generation_tokens",),
    },
    facts={
        "block_size": ("vllm:cache_config_info#block_size",),
        "blocks": ("vllm:cache_config_info#num_gpu_blocks",),
        "kv_dtype": ("vllm:cache_config_info#cache_dtype",),
        "prefix_caching": ("vllm:cache_config_info#enable_prefix_caching",),
        **_PROCESS,
    },
    missing={
        "blocks": _NO_BLOCKS,
        "waste": _NO_WASTE,
        "batch": "it tells how many tokens steps had, not whose",
        "kv_usage": "its API processes tell different ones, or its engines not how much memory they have",
        "kv_used": "it tells the share in use, not the tokens",
        "prefixes": "start it with --kv-events-config to have its prefix cache's events",
    },
    notes={
        "prompt_tokens": "counted at a request's first token",
        "step_tokens": "with several API processes, a step counts once for each that it has tokens for",
    },
)
_OURS = Dialect(
    kind="paged-engine",
    title="paged-engine",
    marks=("vllm:", "paged:"),
    counters={
        **_VLLM.counters,
        "steps": ("paged:steps_total",),
        "engine_restarts": ("paged:engine_restarts_total",),
        "swapped_out_blocks": ("paged:swapped_out_blocks_total",),
        "swapped_in_blocks": ("paged:swapped_in_blocks_total",),
        "copied_blocks": ("paged:copied_blocks_total",),
        "recomputed_tokens": ("paged:recomputed_tokens_total",),
    },
    gauges={
        **_VLLM.gauges,
        "kv_used": (
            "paged:blocks{state=reserved} + paged:blocks{state=filling} + paged:blocks{state=full}"
            " + paged:blocks{state=shared} * vllm:cache_config_info#block_size",
        ),
        "held": ("paged:num_requests_held",),
        "engine_up": ("paged:engine_up",),
        **{
            f"blocks_{state}": (f"paged:blocks{{state={state}}}",)
            for state in ("free", "cached", "reserved", "filling", "full", "shared")
        },
        **{f"slots_{kind}": (f"paged:slots{{kind={kind}}}",) for kind in ("held", "filled", "internal", "external")},
        "logical_blocks": ("paged:logical_blocks",),
        "physical_blocks": ("paged:physical_blocks",),
        "saved_bytes": ("paged:saved_bytes",),
        "host_blocks": ("paged:host_blocks",),
        "host_blocks_used": ("paged:host_blocks_used",),
    },
    histograms=_VLLM.histograms,
    facts=_VLLM.facts,
    notes={"prompt_tokens": "counted at a request's first token"},
    missing={
        "blocks": "its step stream tells single blocks: --source steps",
        "batch": "its step stream tells who was in a step: --source steps",
        "prefixes": "start it with --kv-events to have its prefix cache's events",
    },
)
_SGLANG = Dialect(
    kind="sglang",
    title="SGLang",
    marks=("sglang:",),
    spellings=("sglang_",),
    counters={
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
        "live_prompt_tokens": (
            "sglang:realtime_tokens_total{mode=prefill_compute} + sglang:realtime_tokens_total{mode=prefill_cache}",
        ),
        "live_generation_tokens": ("sglang:realtime_tokens_total{mode=decode}",),
        "computed_prompt_tokens": ("sglang:realtime_tokens_total{mode=prefill_compute}",),
        "cached_prompt_tokens": ("sglang:realtime_tokens_total{mode=prefill_cache}",),
        "requests": ("sglang:num_requests_total",),
        "preemptions": ("sglang:num_retracted_requests_total",),
        "prefix_queried_tokens": (
            "sglang:realtime_tokens_total{mode=prefill_compute} + sglang:realtime_tokens_total{mode=prefill_cache}",
            "sglang:prompt_tokens_total",
        ),
        # Of its cached tokens each request is told by source or, where none is known, as "total": all add up.
        "prefix_hit_tokens": ("sglang:realtime_tokens_total{mode=prefill_cache}", "sglang:cached_tokens_total"),
    },
    gauges={
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_usage": ("sglang:token_usage",),
        "kv_capacity": (
            "sglang:max_total_num_tokens",
            "sglang:cache_config_info#num_pages * sglang:cache_config_info#page_size",
        ),
        "kv_used": ("sglang:num_used_tokens", "sglang:kv_used_tokens"),
        "hit_rate": ("sglang:cache_hit_rate",),
    },
    histograms={
        "ttft": ("sglang:time_to_first_token_seconds",),
        "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "e2el": ("sglang:e2e_request_latency_seconds",),
        "queue": ("sglang:queue_time_seconds",),
        "prompt_length": ("sglang:prompt_tokens_histogram",),
        "generation_length": ("sglang:generation_tokens_histogram",),
    },
    facts={
        "block_size": ("sglang:cache_config_info#page_size",),
        "blocks": ("sglang:cache_config_info#num_pages",),
        **_PROCESS,
    },
    missing={
        "metrics": "start it with --enable-metrics",
        "blocks": _NO_BLOCKS,
        "waste": _NO_WASTE,
        "batch": "it does not tell its steps",
        "tpot": "it tells the times between tokens, not a request's mean",
        "step_tokens": "it does not tell its steps",
        "kv_usage": "its engines do not tell how much memory they have",
        "prefixes": "start it with --kv-events-config to have its prefix cache's events",
    },
    notes={
        "prompt_tokens": _AT_END,
        "generation_tokens": _AT_END,
        "live_generation_tokens": "told every few steps",
        "hit_rate": "of its last prefill batch, and 0 while it decodes",
    },
)
_TGI = Dialect(
    kind="tgi",
    title="TGI",
    marks=("tgi_",),
    counters={
        "prompt_tokens": ("tgi_request_input_length_sum",),
        "generation_tokens": ("tgi_request_generated_tokens_sum",),
        "requests": ("tgi_request_success_total", "tgi_request_success"),
        "steps": ("tgi_batch_inference_count_total", "tgi_batch_inference_count"),
    },
    gauges={"running": ("tgi_batch_current_size",), "waiting": ("tgi_queue_size",)},
    histograms={
        "tpot": ("tgi_request_mean_time_per_token_duration",),
        "e2el": ("tgi_request_duration",),
        "queue": ("tgi_request_queue_duration",),
        "step_time": ("tgi_batch_inference_duration",),
        "prompt_length": ("tgi_request_input_length",),
        "generation_length": ("tgi_request_generated_tokens",),
    },
    facts=_PROCESS,
    missing={
        "blocks": _NO_BLOCKS,
        "waste": _NO_WASTE,
        "batch": "it tells how many requests its batch has, not whose tokens",
        "kv_usage": "it does not tell its KV memory",
        "kv_capacity": "it does not tell its KV memory",
        "kv_used": "it does not tell its KV memory",
        "hit_rate": "it does not tell its prefix cache",
        "prefixes": "it publishes no KV events",
        "ttft": "it tells no time to the first token",
        "itl": "it tells a request's mean, not the times between tokens",
        "preemptions": "it does not tell preemptions",
        "step_tokens": "it does not tell how many tokens a step has",
    },
    notes={"prompt_tokens": _AT_END, "generation_tokens": _AT_END},
)
_LLAMA_CPP = Dialect(
    kind="llama.cpp",
    title="llama.cpp",
    marks=("llamacpp:",),
    spellings=("llamacpp_",),
    counters={
        # Its prompt_tokens_total leaves out what was found in the cache.
        "prompt_tokens": ("llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",),
        "generation_tokens": ("llamacpp:tokens_predicted_total",),
        "computed_prompt_tokens": ("llamacpp:prompt_tokens_total",),
        "cached_prompt_tokens": ("llamacpp:prompt_tokens_cached_total",),
        "prefix_hit_tokens": ("llamacpp:prompt_tokens_cached_total",),
        "prefix_queried_tokens": ("llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",),
        "steps": ("llamacpp:n_decode_total",),
    },
    gauges={
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "kv_usage": ("llamacpp:kv_cache_usage_ratio",),
        "kv_used": ("llamacpp:kv_cache_tokens",),
    },
    histograms={},
    facts=_PROCESS,
    missing={
        "metrics": "start it with --metrics",
        "slots": "start it with --slots",
        "blocks": "it has no blocks, but slots",
        "waste": _NO_WASTE,
        "batch": "its slots tell who is busy, not whose tokens a step had",
        "kv_usage": "its newer versions do not tell it; its slots tell their lengths",
        "kv_capacity": "its slots tell what fits",
        "kv_used": "its newer versions do not tell it; its slots tell their lengths",
        "prefixes": "it publishes no KV events",
        "requests": "it does not count requests",
        "preemptions": "it does not preempt",
        **dict.fromkeys(("ttft", "itl", "tpot", "e2el", "queue", "prefill", "decode"), "it tells no latencies"),
        "step_tokens": "it does not tell how many tokens a step has",
    },
    notes={"prompt_tokens": "counted when a prompt is done", "generation_tokens": _AT_END},
)
_TENSORRT_LLM = Dialect(
    kind="tensorrt-llm",
    title="TensorRT-LLM",
    marks=("trtllm_",),
    spellings=("trtllm:",),
    counters={
        "prompt_tokens": ("trtllm_prompt_tokens_total",),
        "generation_tokens": ("trtllm_generation_tokens_total",),
        "requests": ("trtllm_request_success_total",),
        "prefix_hit_tokens": ("trtllm_prompt_cached_tokens_total",),
        "prefix_queried_tokens": ("trtllm_prompt_tokens_total",),
        "prefix_hit_blocks": ("trtllm_kv_cache_reused_blocks_total",),
        "prefix_queried_blocks": ("trtllm_kv_cache_reused_blocks_total + trtllm_kv_cache_missed_blocks_total",),
    },
    gauges={
        "running": ("trtllm_num_requests_running", "trtllm_num_active_requests"),
        "waiting": ("trtllm_num_requests_waiting", "trtllm_num_queued_requests", "trtllm_server_queue_length"),
        "swapped": ("trtllm_num_paused_requests",),
        "kv_usage": (
            "trtllm_kv_cache_utilization",
            "trtllm_kv_cache_used_blocks / trtllm_kv_cache_max_blocks",
        ),
        "kv_capacity": ("trtllm_kv_cache_max_blocks * trtllm_kv_cache_tokens_per_block",),
        "kv_used": ("trtllm_kv_cache_used_blocks * trtllm_kv_cache_tokens_per_block",),
        "hit_rate": ("trtllm_kv_cache_hit_rate",),
    },
    histograms={
        "ttft": ("trtllm_time_to_first_token_seconds",),
        "tpot": ("trtllm_time_per_output_token_seconds",),
        "e2el": ("trtllm_e2e_request_latency_seconds",),
        "queue": ("trtllm_request_queue_time_seconds",),
        "prefill": ("trtllm_request_prefill_time_seconds",),
        "decode": ("trtllm_request_decode_time_seconds",),
    },
    facts={
        "block_size": ("trtllm_kv_cache_tokens_per_block",),
        "blocks": ("trtllm_kv_cache_max_blocks",),
        **_PROCESS,
    },
    paths=("/prometheus/metrics", "/metrics"),
    missing={
        "metrics": "start it with return_perf_metrics: true in its configuration",
        "blocks": _NO_BLOCKS,
        "waste": _NO_WASTE,
        "batch": "it does not tell whose tokens a step had",
        "itl": "it tells a request's mean, not the times between tokens",
        "preemptions": "it tells how many requests are paused, not how often",
        "step_tokens": "it does not tell how many tokens a step has",
        "prefixes": "its metrics do not tell which prefixes it keeps",
    },
    notes={
        "prompt_tokens": _AT_END,
        "generation_tokens": _AT_END,
        "hit_rate": "since its start",
        "swapped": "paused",
    },
)
_REQUESTS = "nv_trt_llm_request_metrics"
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_TRITON = Dialect(
    kind="triton",
    title="Triton",
    marks=("nv_trt_llm_",),
    counters={
        "prompt_tokens": ("nv_llm_input_token_len_sum",),
        "generation_tokens": ("nv_llm_output_token_len_sum",),
        "steps": ("nv_trt_llm_general_metrics{general_type=iteration_counter}",),
    },
    gauges={
        # Scheduled are those in the batch; active ones wait or run.
        "running": (f"{_REQUESTS}{{request_type=scheduled}}",),
        "waiting": (f"{_REQUESTS}{{request_type=waiting}}",),
        "swapped": ("nv_trt_llm_inflight_batcher_metrics{inflight_batcher_specific_metric=paused_requests}",),
        "kv_usage": (
            f"{_BLOCKS}{{kv_cache_block_type=fraction}}",
            f"{_BLOCKS}{{kv_cache_block_type=used}} / {_BLOCKS}{{kv_cache_block_type=max}}",
        ),
        "kv_capacity": (f"{_BLOCKS}{{kv_cache_block_type=max}} * {_BLOCKS}{{kv_cache_block_type=tokens_per}}",),
        "kv_used": (f"{_BLOCKS}{{kv_cache_block_type=used}} * {_BLOCKS}{{kv_cache_block_type=tokens_per}}",),
    },
    histograms={
        "ttft": ("nv_inference_first_response_histogram_ms",),
        "prompt_length": ("nv_llm_input_token_len",),
        "generation_length": ("nv_llm_output_token_len",),
    },
    facts={
        "block_size": (f"{_BLOCKS}{{kv_cache_block_type=tokens_per}}",),
        "blocks": (f"{_BLOCKS}{{kv_cache_block_type=max}}",),
    },
    missing={
        "blocks": _NO_BLOCKS,
        "waste": _NO_WASTE,
        "batch": "it does not tell whose tokens a step had",
        "ttft": "start it with --metrics-config histogram_latencies=true",
        **dict.fromkeys(("itl", "tpot", "e2el", "queue"), "it tells no such latencies"),
        "hit_rate": "it tells blocks in use, not those found",
        "requests": "it counts requests by model of its ensemble, not by what a user sent",
        "preemptions": "it tells how many requests are paused, not how often",
        "step_tokens": "it does not tell how many tokens a step has",
        "prefixes": "it publishes no KV events",
    },
    notes={"prompt_tokens": _AT_END, "generation_tokens": _AT_END, "swapped": "paused"},
)
DIALECTS = (_OURS, _VLLM, _SGLANG, _TGI, _LLAMA_CPP, _TENSORRT_LLM, _TRITON)
BY_KIND: Mapping[str, Dialect] = {dialect.kind: dialect for dialect in DIALECTS}
