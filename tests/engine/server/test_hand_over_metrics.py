"""The metrics of two engines that hand requests over, from their records alone, against what they count themselves."""

from __future__ import annotations

import pytest

from engine.server.metrics import Metrics
from tests.engine.handing import Handing, Side
from tests.engine.mirror import greedy

PROMPT = list(range(10, 28))


def samples(metrics: Metrics) -> dict[str, float]:
    found = {}
    for family in metrics.families():
        for sample in family.samples:
            labels = [value for label, value in sorted(sample.labels.items()) if label not in ("engine", "model_name")]
            found["/".join((sample.name, *labels))] = sample.value
    return found


def observed(both: Handing, side: Side, until: int | None = None) -> Metrics:
    metrics = Metrics(both.cores[side].info, "mirror")
    for record in both.records[side][:until]:
        metrics.observe(record)
    return metrics


def test_what_is_under_way_is_a_gauge() -> None:
    both = Handing()
    both.add(PROMPT, greedy(6, ignore_eos=True))
    both.step("p")
    both.place(both.passing[0])
    both.step("d")
    sent, received = samples(observed(both, "p")), samples(observed(both, "d"))
    assert (sent["paged:num_requests_sending"], sent["vllm:num_requests_running"]) == (1, 0)
    assert (received["paged:num_requests_receiving"], received["vllm:num_requests_running"]) == (1, 0)
    both.run()
    sent, received = samples(observed(both, "p")), samples(observed(both, "d"))
    assert (sent["paged:num_requests_sending"], received["paged:num_requests_receiving"]) == (0, 0)


def test_prompts_are_counted_by_what_had_them() -> None:
    both = Handing()
    for index in range(2):
        both.add([*PROMPT, index], greedy(6, ignore_eos=True, seed=3), siblings=2)
        both.run()
    both.add([40, *PROMPT], greedy(6, ignore_eos=True, seed=3), siblings=2)
    both.step("p")
    both.place(both.passing[0])
    both.step("d")
    both.connectors["d"].fail("r2", "it broke off")
    both.run()
    sent, received = samples(observed(both, "p")), samples(observed(both, "d"))
    by_source = {
        source: (
            sent[f"vllm:prompt_tokens_by_source_total/{source}"],
            received[f"vllm:prompt_tokens_by_source_total/{source}"],
        )
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    }
    # The second shares 18 tokens with the first, of which whole blocks are found on either side. The third is computed
    # again where it goes on, and its siblings find that.
    assert by_source["external_kv_transfer"] == (0, 19 + 3)
    assert by_source["local_compute"] == (19 + 3 + 19, 19)
    assert by_source["local_cache_hit"] == (16, 16 + 19 + 19)
    assert sent["vllm:prompt_tokens_total"] == 57
    assert received["vllm:prompt_tokens_total"] == sum(values[1] for values in by_source.values())
    assert received["vllm:external_prefix_cache_queries_total"] == 19 + 3 + 19
    assert received["vllm:external_prefix_cache_hits_total"] == 19 + 3
    assert (sent["paged:failed_transfers_total"], received["paged:failed_transfers_total"]) == (0, 1)
    assert received["paged:received_requests_total"] == both.cores["d"].counters.received == 2
    assert received["paged:received_blocks_total"] == both.cores["d"].counters.received_blocks
    assert sent["vllm:request_success_total/handed_over"] == 9


@pytest.mark.parametrize("side", ["p", "d"])
def test_totals_catch_up_after_records_were_lost(side: Side) -> None:
    both = Handing()
    for index in range(3):
        both.add([*PROMPT, index], greedy(6, ignore_eos=True, seed=3), siblings=1)
        both.run()
    whole, resumed = samples(observed(both, side)), observed(both, side, until=2)
    resumed.resume(both.cores[side].snapshot())
    found = samples(resumed)
    for name in (
        "paged:received_requests_total",
        "paged:received_blocks_total",
        "paged:failed_transfers_total",
        "vllm:external_prefix_cache_hits_total",
        "vllm:request_success_total/handed_over",
    ):
        assert found[name] == whole[name], name
