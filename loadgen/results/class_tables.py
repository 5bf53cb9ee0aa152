"""The table of latencies of short and of long prompts. Pure."""

from __future__ import annotations

from loadgen.metrics.classes import LONG, SHORT
from loadgen.results.document import Document
from loadgen.results.tables import Table, text

_STATISTICS = ("p50", "p90", "p99", "max")
_LATENCIES = (("ttft_scheduled", "TTFT, scheduled"), ("itl", "ITL per chunk"), ("e2el_scheduled", "E2E, scheduled"))


def class_table(document: Document) -> Table | None:
    """Each latency of each class with the count behind it; None where a run's prompts are in no classes."""
    classes = document.get("classes")
    if classes is None:
        return None
    rows = []
    for name, title in _LATENCIES:
        for of, figures in classes["of"].items():
            values = [figures.get(f"{statistic}_{name}_ms") for statistic in _STATISTICS]
            rows.append((f"{title}, {of} (ms)", *map(text, values), text(figures.get(f"count_{name}"))))
    split, turns = classes["split_prompt_tokens"], {of: one["turns"] for of, one in classes["of"].items()}
    caption = [
        f"{SHORT}: the {turns[SHORT]:,} prompts of up to {split:,} tokens; {LONG}: the {turns[LONG]:,} others.",
    ]
    if untold := classes["untold"]:
        caption.append(f"{untold:,} turns told no length, and are in neither.")
    return Table("Latency by prompt length", tuple(rows), ("", *_STATISTICS, "n"), tuple(caption))
