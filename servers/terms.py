"""The terms that every server's figures are read into. A server that does not tell one has none of it: never 0."""

from __future__ import annotations

from typing import NamedTuple

Labels = frozenset[tuple[str, str]]


class Engine(NamedTuple):
    """One engine behind a server's page: the model it serves, and which of its replicas; empty where not told."""

    model: str = ""
    rank: str = ""


# Counters, in tokens, blocks, requests and steps.
COUNTERS = (
    "prompt_tokens",  # of prompts, those found in the prefix cache included
    "generation_tokens",
    "requests",  # that ended
    "preemptions",
    "prefix_queried_tokens",
    "prefix_hit_tokens",
    "prefix_queried_blocks",
    "prefix_hit_blocks",
    "computed_prompt_tokens",  # that were computed, and
    "cached_prompt_tokens",  # that came from the cache, both as they happen
    "live_prompt_tokens",  # both together
    "live_generation_tokens",  # as they happen, where `generation_tokens` may be raised only at a request's end
    "steps",
    # The project's own engine alone:
    "engine_restarts",
    "swapped_out_blocks",
    "swapped_in_blocks",
    "copied_blocks",
    "recomputed_tokens",
)
# By what a screen asks for: the counter that is raised as it happens.
LIVE = {"prompt_tokens": "live_prompt_tokens", "generation_tokens": "live_generation_tokens"}
# Gauges. `SHARES` are of 1 and never added up; the others are counts, and add up over engines.
GAUGES = (
    "running",
    "waiting",
    "swapped",
    "kv_usage",
    "kv_capacity",  # of KV memory, in tokens
    "kv_used",  # likewise, where the server itself tells it
    "hit_rate",  # as the server itself reckons it, over a window of its own
    # The project's own engine alone:
    "held",  # finished requests that keep their row
    "engine_up",  # engines that serve
    "blocks_free",
    "blocks_cached",
    "blocks_reserved",
    "blocks_filling",
    "blocks_full",
    "blocks_shared",
    "slots_held",
    "slots_filled",
    "slots_internal",
    "slots_external",
    "logical_blocks",
    "physical_blocks",
    "saved_bytes",
    "host_blocks",
    "host_blocks_used",
)
SHARES = frozenset({"kv_usage", "hit_rate"})
# Histograms, in seconds but for the last three, which are in tokens.
HISTOGRAMS = (
    "ttft",
    "itl",
    "tpot",
    "e2el",
    "queue",
    "prefill",
    "decode",
    "step_time",
    "step_tokens",  # tokens computed in a step
    "prompt_length",
    "generation_length",
)
# What a server tells of itself once, as text.
FACTS = ("version", "block_size", "blocks", "kv_dtype", "prefix_caching", "process_start")
