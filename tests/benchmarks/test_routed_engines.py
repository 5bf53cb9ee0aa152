from __future__ import annotations

import msgspec

from benchmarks.routed_engines import Load, route

FIFTY = Load(requests=400, clients=16)


def test_prefixes_that_do_not_fit_everywhere_are_found_where_they_are() -> None:
    prefix, turns, least = (route(FIFTY, routing) for routing in ("prefix", "round_robin", "least_loaded"))
    assert prefix.hit_rate >= 1.5 * max(turns.hit_rate, least.hit_rate)
    assert max(prefix.sent_imbalance, prefix.computed_imbalance) < 1.3
    assert prefix.ttft_p50 < turns.ttft_p50


def test_one_prompt_for_everybody_is_no_reason_to_queue_at_one_engine() -> None:
    load = msgspec.structs.replace(FIFTY, prompts=1, requests=200)
    prefix, turns = route(load, "prefix"), route(load, "round_robin")
    assert prefix.computed_imbalance < 1.3
    assert prefix.hit_rate > 0.95 * turns.hit_rate


def test_the_same_is_routed_alike() -> None:
    load = msgspec.structs.replace(FIFTY, requests=100)
    assert route(load, "prefix") == route(load, "prefix")
