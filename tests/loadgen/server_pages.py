"""Recorded pages of servers' /metrics, cut to what matters and with numbers that can be added by hand."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "server_metrics"
SERVERS = ("vllm", "vllm_v0", "sglang", "tgi", "llama_cpp", "tensorrt_llm")


def pages(name: str) -> tuple[str, str]:
    """One at the beginning of a run, one at its end."""
    first, last = (FOLDER / f"{name}.txt").read_text().split("=== later\n")
    return first, last
