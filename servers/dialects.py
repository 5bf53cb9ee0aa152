"""Each server's names for the terms, as its documentation and source have had them from 2023 to 2026.

Names change between versions: in each tuple the first one that is there counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
