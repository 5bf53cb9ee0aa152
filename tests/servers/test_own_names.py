"""The names of the project's own engine are those that its metrics have: a name that changes there fails here."""

from __future__ import annotations

from engine.protocol import EngineInfo
from engine.server.metrics import Metrics
from servers.dialects import BY_KIND
from servers.reading import lines_known
from servers.terms import Engine
from tests.servers.recorded import known

INFO = EngineInfo(
    model="tiny",
    dtype="float32",
    device="cpu",
    block_size=16,
    num_blocks=200,
    kv_bytes_per_token=64,
    max_model_len=512,
    version="1",
    num_host_blocks=10,
)
# vLLM's older names, and what only other engines tell.
NOT_OURS = {"swapped", "hit_rate", "prefix_queried_blocks", "prefix_hit_blocks"}


def test_everything_that_is_read_of_our_engine_is_told_by_it() -> None:
    metrics = Metrics(INFO, "m")
    metrics.set_up(False, 0)  # tells of every state and kind, that there is none
    text = metrics.text().decode()
    reading = known(text)
    ours = BY_KIND["paged-engine"]
    assert reading.kind == "paged-engine"
    assert reading.engines == (Engine("m", "0"),)
    assert ours.counters.keys() - NOT_OURS == reading.counters.keys()
    assert ours.gauges.keys() - NOT_OURS == reading.gauges.keys()
    assert ours.histograms.keys() == reading.histograms.keys()
    assert reading.totals()["kv_capacity"] == 3_200
    assert (reading.totals()["host_blocks"], reading.totals()["kv_used"]) == (10, 0)
    assert {"block_size": "16", "blocks": "200", "kv_dtype": "float32"}.items() <= reading.facts.items()
    assert known(lines_known(text)) == reading
