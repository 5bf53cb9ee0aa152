"""What the figures must come to (issue 4): each aim with what was measured in its place, or why nothing was.

A peer is known by its name: that of `--server` must contain `vllm` or `llama`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from benchmarks.figures import Rounds, Spread, computed_share, rate, ratio, seconds, spread, token_seconds
from benchmarks.messages import Facts, Settings

MIB = 1024 * 1024


class Aim(msgspec.Struct, frozen=True):
    """`measured` None: what it compares was not in this run. `at_least` says which way is better."""

    work: str
    text: str
    wanted: float
    sense: Literal["at least", "at most"]
    measured: Spread | None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """By the median."""
        if self.measured is None:
            return None
        median = self.measured.median
        return median >= self.wanted if self.sense == "at least" else median <= self.wanted


def aims(
    works: Mapping[str, Rounds], names: Iterable[str], settings: Settings, facts: Facts, peak_bytes: int | None
) -> list[Aim]:
    """Every aim, whether or not this run measured it."""
    names = list(names)
    vllm, llama = _named(names, "vllm"), _named(names, "llama")
    burst, single, ragged, shared = (works.get(name, []) for name in ("burst", "single", "ragged", "shared-prefix"))
    allowed = memory_allowed(settings, facts)
    memory = None if peak_bytes is None else Spread.of([peak_bytes / MIB])
    found = [
        Aim("burst", "floor / offline", 0.70, "at least", ratio(burst, "floor", "offline", seconds)),
        Aim("burst", "http / vLLM, output tokens/s", 1.6, "at least", ratio(burst, "http", vllm, rate)),
        Aim("burst", "http / offline, output tokens/s", 0.9, "at least", ratio(burst, "http", "offline", rate)),
        Aim("single", "offline / floor, time per token", 1.25, "at most", _tokens(single, "offline", "floor")),
        Aim("single", "http / vLLM, time per token", 0.7, "at most", _tokens(single, "http", vllm)),
        Aim("ragged", "offline / generate, output tokens/s", 4.0, "at least", _rates(ragged, "offline", "generate")),
        Aim("ragged", "continuous / static, output tokens/s", 3.0, "at least", _rates(ragged, "offline", "static")),
        Aim(
            "shared-prefix",
            "prefill tokens computed / distinct",
            1.05,
            "at most",
            spread(shared, "offline", computed_share),
        ),
        Aim("shared-prefix", "http / vLLM, output tokens/s", 2.0, "at least", _rates(shared, "http", vllm)),
        Aim("memory", "peak of the engine's processes", allowed / MIB, "at most", memory, "MiB"),
    ]
    if settings.quantize != "none":
        alone = spread(single, "offline", lambda run: None if run.token_seconds is None else run.token_seconds * 1e3)
        found[5:5] = [
            Aim("single", f"offline, {settings.quantize}, time per token", 10.0, "at most", alone, "ms"),
            Aim("single", "offline / llama.cpp, time per token", 1.0, "at most", _tokens(single, "offline", llama)),
        ]
    return found


def memory_allowed(settings: Settings, facts: Facts) -> float:
    """Bytes: 1.3 times the weights, the KV pool and 700 MB."""
    return 1.3 * facts.weight_bytes + settings.kv_memory + 700e6


def _tokens(rounds: Rounds, above: str, below: str) -> Spread | None:
    return ratio(rounds, above, below, token_seconds)


def _rates(rounds: Rounds, above: str, below: str) -> Spread | None:
    return ratio(rounds, above, below, rate)


def _named(names: list[str], part: str) -> str:
    """The participant whose name contains `part`; a name that nobody has where there is none."""
    return next((name for name in names if part in name.lower()), f"no {part}")
