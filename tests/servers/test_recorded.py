"""What each server's pages come to, in figures that were worked out by hand: two versions of each, several engines."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

from servers.dialects import BY_KIND, DIALECTS, Dialect
from servers.measures import measure
from servers.reading import lines_known, read
from servers.terms import COUNTERS, FACTS, GAUGES, HISTOGRAMS, Engine
from tests.servers.recorded import NAMES, known, looks, pages

ALONE = Engine()
M = Engine("m")
M0, M1 = Engine("m", "0"), Engine("m", "1")


class Expected(NamedTuple):
    kind: str
    engines: tuple[Engine, ...]
    first: dict[str, float]  # all gauges of the first look
    later: dict[str, float]  # some of the later one, 10 seconds after it
    growth: dict[str, float]  # all counters
    hit_rate: float | None
    generation: tuple[float, bool] | None  # a second, and whether as it happens
    histograms: dict[str, tuple[float, float | None, float]]  # all: count, mean, and what half of them are at most
    facts: dict[str, str]


EXPECTED = {
    # 0.5 of 48,000 tokens and 0.1 of 16,000; then 0.9 and 0.1. An engine that had not spoken before counts from 0.
    "vllm": Expected(
        "vllm",
        (M0, M1),
        {"running": 3, "waiting": 4, "kv_usage": 0.4, "kv_capacity": 64_000},
        {"running": 7, "waiting": 0, "kv_usage": 0.7},
        {
            "prompt_tokens": 1000,
            "generation_tokens": 50,
            "requests": 6,
            "preemptions": 3,
            "live_prompt_tokens": 1000,
            "live_generation_tokens": 50,
            "prefix_queried_tokens": 1000,
            "prefix_hit_tokens": 500,
        },
        0.5,
        (5, True),
        {"ttft": (10, 0.7, 0.5), "itl": (10, 0.05, 0.1)},  # 4 of 10 within 0.1 s, 9 within 0.5
        {"block_size": "16", "blocks": "1000, 3000", "kv_dtype": "auto"},
    ),
    # 0.25 and 0.75 of 40,000 each, and half of 20,000: the capacity is told, and blocks times their size are not it.
    "vllm_models": Expected(
        "vllm",
        (Engine("a/large", "0"), Engine("a/large", "1"), Engine("b/small", "2")),
        {"running": 12, "waiting": 1, "kv_usage": 0.5, "kv_capacity": 100_000},
        {"running": 6, "waiting": 0, "kv_usage": 0.4},
        {
            "prompt_tokens": 1000,
            "generation_tokens": 100,
            "live_prompt_tokens": 1000,
            "live_generation_tokens": 100,
            "computed_prompt_tokens": 200,
            "cached_prompt_tokens": 300,
            "prefix_queried_tokens": 1000,
            "prefix_hit_tokens": 700,
        },
        0.7,
        (10, True),
        {"step_tokens": (8, 80, 1)},
        {
            "block_size": "16",
            "blocks": "9999",
            "kv_dtype": "auto, fp8",
            "prefix_caching": "True",
            "process_start": "1786910600",
        },
    ),
    # Of the four processes that tell the KV cache, one is right; later two differ, and nobody knows which one is.
    "vllm_processes": Expected(
        "vllm",
        (M0,),
        {"running": 6, "waiting": 0, "kv_usage": 0.65},
        {"running": 5, "waiting": 0},
        {
            "prompt_tokens": 200,
            "generation_tokens": 40,
            "live_prompt_tokens": 200,
            "live_generation_tokens": 40,
        },
        None,
        (4, True),
        {},
        {},
    ),
    "vllm_v0": Expected(
        "vllm",
        (M,),
        {"running": 7, "waiting": 1, "swapped": 0, "kv_usage": 0.42},
        {"kv_usage": 0.44},
        {
            "prompt_tokens": 100,
            "generation_tokens": 10,
            "live_prompt_tokens": 100,
            "live_generation_tokens": 10,
            "prefix_queried_blocks": 100,
            "prefix_hit_blocks": 50,
        },
        0.5,
        (1, True),
        {"itl": (10, 0.05, 0.1)},
        {"block_size": "16", "kv_dtype": "auto"},
    ),
    # Two ranks of each of two engines: 0.1 of 20,000 and 0.4 of 10,000. Cached tokens of all sources.
    "sglang": Expected(
        "sglang",
        (M0, M1),
        {"running": 4, "waiting": 2, "kv_usage": 0.2, "kv_capacity": 30_000, "hit_rate": 0},
        {"running": 0, "waiting": 0, "kv_usage": 0.3},
        {
            "prompt_tokens": 1000,
            "generation_tokens": 70,
            "requests": 6,
            "preemptions": 2,
            "prefix_queried_tokens": 1000,
            "prefix_hit_tokens": 250,
        },
        0.25,
        (7, False),
        {"ttft": (10, 0.2, 0.4)},
        {},
    ),
    # While no request ends, its live counters go on: 2 engines of 1,000 and 250 pages of 64 tokens.
    "sglang_live": Expected(
        "sglang",
        (M0, M1),
        {"running": 8, "waiting": 2, "kv_usage": 0.35, "kv_capacity": 80_000, "kv_used": 28_000},
        {"running": 10, "waiting": 0, "kv_usage": 0.4, "kv_used": 32_000},
        {
            "prompt_tokens": 0,
            "generation_tokens": 0,
            "requests": 0,
            "preemptions": 2,
            "live_prompt_tokens": 1000,
            "live_generation_tokens": 100,
            "computed_prompt_tokens": 500,
            "cached_prompt_tokens": 500,
            "prefix_queried_tokens": 1000,
            "prefix_hit_tokens": 500,
        },
        0.5,
        (10, True),
        {"itl": (100, 0.015, 0.02)},
        {"block_size": "64", "blocks": "1000, 250"},
    ),
    # Its first versions told the hit rate in percent: no share, so not shown as one.
    "sglang_first": Expected(
        "sglang",
        (M,),
        {"running": 4, "waiting": 1, "kv_usage": 0.3, "kv_capacity": 1000, "kv_used": 300},
        {"running": 5, "kv_used": 400, "hit_rate": 0.5},
        {"prompt_tokens": 100, "generation_tokens": 20, "prefix_queried_tokens": 100},
        None,
        (2, False),
        {"itl": (10, 0.1, math.inf)},
        {},
    ),
    "tgi": Expected(
        "tgi",
        (ALONE,),
        {"running": 5, "waiting": 3},  # and nothing of its KV memory: absent, not 0
        {"running": 1, "waiting": 0},
        {"prompt_tokens": 1000, "generation_tokens": 300, "requests": 10, "steps": 300},
        None,
        (30, False),
        {
            "tpot": (10, 0.02, 0.05),
            "e2el": (10, 1, 2),
            "prompt_length": (10, 100, 100),
            "generation_length": (10, 30, 100),
        },
        {},
    ),
    "tgi_later": Expected(
        "tgi",
        (ALONE,),
        {"running": 7, "waiting": 2},
        {"running": 3, "waiting": 0},
        {"prompt_tokens": 200, "generation_tokens": 80, "requests": 4, "steps": 40},
        None,
        (8, False),
        {
            "queue": (4, 0.5, 0.5),
            "step_time": (40, 0.1, 0.1),
            "prompt_length": (4, 50, 100),
            "generation_length": (4, 20, 100),
        },
        {},
    ),
    # What it found in its cache is no part of its prompt tokens.
    "llama_cpp": Expected(
        "llama.cpp",
        (ALONE,),
        {"running": 2, "waiting": 1},
        {"running": 4, "waiting": 0},
        {
            "prompt_tokens": 400,
            "generation_tokens": 40,
            "computed_prompt_tokens": 100,
            "cached_prompt_tokens": 300,
            "prefix_queried_tokens": 400,
            "prefix_hit_tokens": 300,
        },
        0.75,
        (4, False),
        {},
        {},
    ),
    "llama_cpp_kv": Expected(
        "llama.cpp",
        (ALONE,),
        {"running": 1, "waiting": 0, "kv_usage": 0.125, "kv_used": 512},
        {"running": 2, "waiting": 3, "kv_usage": 0.25, "kv_used": 1024},
        {"generation_tokens": 30, "computed_prompt_tokens": 200, "steps": 30},
        None,
        (3, False),
        {},
        {},
    ),
    "tensorrt_llm": Expected(
        "tensorrt-llm",
        (M,),
        {"running": 2, "waiting": 0, "kv_usage": 0.25, "hit_rate": 0.99},
        {"running": 4, "waiting": 1, "kv_usage": 0.75},
        {
            "prompt_tokens": 1280,
            "generation_tokens": 128,
            "requests": 8,
            "prefix_queried_tokens": 1280,
            "prefix_queried_blocks": 40,
            "prefix_hit_blocks": 30,
        },
        0.75,  # by blocks
        (12.8, False),
        {"tpot": (8, 0.02, 0.025)},
        {"blocks": "400"},
    ),
    # 300 of 400 blocks of 32 tokens; no share is told, and it is the one.
    "tensorrt_llm_blocks": Expected(
        "tensorrt-llm",
        (M,),
        {
            "running": 3,
            "waiting": 5,
            "swapped": 1,
            "kv_usage": 0.75,
            "kv_capacity": 12_800,
            "kv_used": 9_600,
        },
        {"running": 4, "waiting": 0, "kv_usage": 0.25, "kv_used": 3_200},
        {
            "prompt_tokens": 2000,
            "generation_tokens": 50,
            "requests": 5,
            "prefix_queried_tokens": 2000,
            "prefix_hit_tokens": 500,
            "prefix_queried_blocks": 30,
            "prefix_hit_blocks": 10,
        },
        0.25,  # by tokens
        (5, False),
        {"decode": (5, 2, 2.5)},
        {"block_size": "32", "blocks": "400"},
    ),
    # 3,000 ms more over 10 requests, and 5 of them within 500 ms.
    "triton": Expected(
        "triton",
        (Engine("tensorrt_llm"),),
        {
            "running": 4,
            "waiting": 3,
            "swapped": 0,
            "kv_usage": 0.55,
            "kv_capacity": 12_800,
            "kv_used": 7_040,
        },
        {"running": 6, "waiting": 0, "swapped": 1, "kv_usage": 0.25, "kv_used": 3_200},
        {"prompt_tokens": 1500, "generation_tokens": 100, "steps": 100},
        None,
        (10, False),
        {"ttft": (10, 0.3, 0.5), "prompt_length": (10, 150, 100), "generation_length": (10, 10, 100)},
        {"block_size": "64", "blocks": "200"},
    ),
    "triton_older": Expected(
        "triton",
        (Engine("tensorrt_llm"),),
        {"running": 1, "swapped": 0, "kv_usage": 0.25, "kv_capacity": 12_800, "kv_used": 3_200},
        {"running": 2, "kv_usage": 0.5, "kv_used": 6_400},
        {"steps": 20},
        None,
        None,
        {},
        {"block_size": "64", "blocks": "200"},
    ),
    "paged_engine": Expected(
        "paged-engine",
        (Engine("tiny", "0"),),
        {
            "running": 2,
            "waiting": 1,
            "held": 0,
            "kv_usage": 0.3,
            "kv_capacity": 1600,
            "kv_used": 480,
            "blocks_free": 60,
            "blocks_cached": 10,
            "blocks_reserved": 5,
            "blocks_filling": 5,
            "blocks_full": 15,
            "blocks_shared": 5,
            "engine_up": 1,
            "slots_held": 480,
            "slots_filled": 400,
            "slots_internal": 80,
            "slots_external": 0,
        },
        {"running": 3, "waiting": 0, "held": 1, "kv_usage": 0.4, "kv_used": 640, "slots_external": 16},
        {
            "prompt_tokens": 600,
            "generation_tokens": 90,
            "live_prompt_tokens": 600,
            "live_generation_tokens": 90,
            "prefix_queried_tokens": 600,
            "prefix_hit_tokens": 300,
            "steps": 30,
            "engine_restarts": 0,
        },
        0.5,
        (9, True),
        {},
        {"block_size": "16", "blocks": "100", "kv_dtype": "float32"},
    ),
}


def test_every_page_is_in_the_table() -> None:
    assert set(EXPECTED) == set(NAMES)
    assert {expected.kind for expected in EXPECTED.values()} == set(BY_KIND)


@pytest.mark.parametrize("name", NAMES)
def test_figures_by_hand(name: str) -> None:
    expected = EXPECTED[name]
    first, later = looks(name)
    seen = measure(first, later, 10.0)
    assert (first.kind, later.kind) == (expected.kind, expected.kind)
    assert first.engines == expected.engines
    assert first.totals() == pytest.approx(expected.first)
    assert {term: seen.gauges[term] for term in expected.later} == pytest.approx(expected.later)
    assert not seen.restarted
    assert seen.growth == pytest.approx(expected.growth)
    assert seen.hit_rate == pytest.approx(expected.hit_rate)
    assert seen.pace("generation_tokens") == pytest.approx(expected.generation)
    assert {term: (seen.count(term), seen.mean(term), seen.at_most(term, 50)) for term in seen.histograms} == {
        term: pytest.approx(figures) for term, figures in expected.histograms.items()
    }
    assert later.facts == expected.facts
    assert seen.parts == len(expected.engines)


def test_what_two_processes_tell_differently_is_not_told() -> None:
    _, later = looks("vllm_processes")
    assert "kv_usage" not in later.totals()


@pytest.mark.parametrize("name", NAMES)
def test_every_term_is_known_and_an_idle_server_tells_no_latency(name: str) -> None:
    _, later = looks(name)
    assert later.counters.keys() <= set(COUNTERS)
    assert later.gauges.keys() <= set(GAUGES)
    assert later.histograms.keys() <= set(HISTOGRAMS)
    assert later.facts.keys() <= set(FACTS)
    idle = measure(later, later, 1.0)
    assert set(idle.growth.values()) <= {0.0}
    assert (idle.histograms, idle.hit_rate) == ({}, None)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_of_the_lines_that_count_reads_the_same(name: str) -> None:
    for page in pages(name):
        kept = lines_known(page)
        assert known(kept).layout is known(page).layout
        assert list(known(kept).values) == list(known(page).values)
        assert "#" not in kept
        assert lines_known(kept) == kept


@pytest.mark.parametrize("name", NAMES)
def test_a_page_as_others_write_it(name: str) -> None:
    """OpenMetrics, with times of creation, exemplars and an end; Windows' line ends; stamped lines."""
    for page in pages(name):
        lines = [line for line in page.splitlines() if not line.startswith("#")]
        plain = known(page)
        for dressed in (
            [*(f'{line} # {{trace_id="ab # }}c"}} 0.5 1700000000.1' for line in lines), "# EOF"],
            [*(f"{line} 1700000000123" for line in lines)],
            [*(f"  {line.replace(' ', chr(9) + ' ')}  \r" for line in lines)],
            [*(line for line in lines for _ in range(2))],
        ):
            seen = known("\n".join(dressed) + "\n")
            assert seen.layout is plain.layout
            assert list(seen.values) == list(plain.values)


def test_a_server_that_is_not_known_is_none() -> None:
    assert read(pages("tgi")[0].replace("tgi_", "tei_")) is None


@pytest.mark.parametrize("spelling", ["vllm_", "vllm:"])
def test_names_as_forwarders_spell_them(spelling: str) -> None:
    page = pages("vllm")[0]
    respelt = page.replace("vllm:", spelling)
    assert known(respelt).layout is known(page).layout


def test_dynamo_once_spelt_tensorrt_llm_with_a_colon() -> None:
    page = pages("tensorrt_llm")[0]
    assert known(page.replace("trtllm_", "trtllm:")).totals() == known(page).totals()


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: str(dialect.kind))
def test_each_dialect_says_what_it_cannot_tell(dialect: Dialect) -> None:
    told = {*dialect.counters, *dialect.gauges, *dialect.histograms}
    if "prefix_hit_tokens" in told:
        told.add("hit_rate")
    shown = {"kv_usage", "hit_rate", "ttft", "itl", "tpot", "e2el", "queue", "preemptions", "requests", "step_tokens"}
    assert shown - told <= dialect.missing.keys()
    assert all(reason and reason[0].islower() and not reason.endswith(".") for reason in dialect.missing.values())
    assert all(path.startswith("/") for path in dialect.paths)
    assert {*dialect.counters} <= {*COUNTERS}
    assert {*dialect.gauges} <= {*GAUGES}
    assert {*dialect.histograms} <= {*HISTOGRAMS}
    assert {*dialect.facts} <= {*FACTS}
