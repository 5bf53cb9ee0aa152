"""Ideal hits against a model of sets of tokens, and the figure that is known of a real trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.simulator.ideal import Ideal, ideal_hits
from engine.simulator.tokens import TracedTokens
from engine.trace_lengths import TracedRequest, read_trace
from tests.engine.simulator.test_tokens import REQUESTS
from tests.engine.simulator.traces import traced

MOONCAKE = Path(__file__).resolve().parents[4] / "shared" / "traces" / "mooncake_conversation_trace.jsonl"


def model(requests: list[tuple[TracedRequest, int]], size: int) -> Ideal:
    """Prefixes of tokens in a set; written apart from the counted names."""
    seen: set[tuple[int, ...]] = set()
    blocks = repeated = reusable = 0
    kept = 0
    for request, round in requests:
        tokens = TracedTokens(request, round)
        prompt = tuple(tokens)
        for _ in range(request.output_tokens - 1):
            tokens.append(0)
        computed = tuple(tokens)
        ends = [*range(size, len(prompt) + 1, size)]
        hits = [prompt[:end] in seen for end in ends]
        reusable += sum(hit for hit, end in zip(hits, ends, strict=True) if end < len(prompt))
        repeated += sum(hits)
        blocks += len(ends)
        if len(prompt) % size:
            blocks += 1
            repeated += prompt in seen
        full = {computed[:end] for end in range(size, len(computed) + 1, size)}
        kept += len(full - seen)
        seen |= full | {prompt}
    return Ideal(blocks, repeated, reusable, kept)


@given(st.lists(REQUESTS, min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 12), st.booleans())
def test_hits_are_those_of_a_set_of_prefixes(trace: list[TracedRequest], size: int, requests: int, fresh: bool) -> None:
    played = [(trace[i % len(trace)], i // len(trace) if fresh else 0) for i in range(requests)]
    assert ideal_hits(trace, size, requests, fresh) == model(played, size)


def test_a_repetition_of_the_same_text_finds_all_but_what_must_be_computed() -> None:
    trace = [traced(0.0, 1, (1, 8)), traced(1.0, 1, (2, 6))]
    assert ideal_hits(trace, 4, 2, fresh=True) == Ideal(4, 0, 0, 3)
    assert ideal_hits(trace, 4, 4, fresh=True) == Ideal(8, 0, 0, 6)
    assert ideal_hits(trace, 4, 4, fresh=False) == Ideal(8, 4, 2, 3)


def test_the_known_rate_of_mooncake() -> None:
    if not MOONCAKE.exists():
        pytest.skip(f"{MOONCAKE} is not here")
    trace = read_trace(MOONCAKE)
    ideal = ideal_hits(trace, 512, len(trace), fresh=True)
    assert (ideal.blocks, ideal.repeated_blocks, ideal.reusable_blocks) == (288_500, 105_710, 105_592)
    assert f"{ideal.repeated_rate:.1%}" == f"{ideal.reusable_rate:.1%}" == "36.6%"
