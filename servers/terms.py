"""The terms that every server's figures are read into. A server that does not tell one has none of it: never 0."""

from __future__ import annotations

from typing import NamedTuple

Labels = frozenset[tuple[str, str]]


class Engine(NamedTuple):
    """One engine behind a server's page: the model it serves, and which of its replicas; empty where not told."""

    model: str = ""
    rank: str = ""


# Counters, in tokens, blocks, requests and times.
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
    "live_generation_tokens",  # as they happen, where `generation_tokens` is raised only at a request's end
    "steps",
)
# Gauges. `kv_usage` and `hit_rate` are shares of 1; the others are counts and add up over engines.
GAUGES = (
    "running",
    "waiting",
    "swapped",
    "kv_usage",
    "kv_capacity",  # of KV memory, in tokens
    "kv_used",
    "hit_rate",  # as the server itself reckons it, over a window of its own
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
    "step_tokens",  # tokens computed in a step
    "prompt_length",
    "generation_length",
)
