"""Inputs drawn by hypothesis: JSON, texts and bytes, and good inputs with such put in. It finds the shortest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

_NUMBERS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True)
_JSON = st.recursive(
    _NUMBERS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


class _Failed(Exception):
    pass


def inputs(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Any of these."""
    as_json = _JSON.map(lambda value: json.dumps(value).encode())
    piece = as_json | st.text(max_size=40).map(str.encode) | st.binary(max_size=40)
    within = st.builds(
        lambda data, at, put, gone: data[: at % (len(data) + 1)] + put + data[at % (len(data) + 1) + gone :],
        st.sampled_from(list(seeds)),
        st.integers(0, 1 << 16),
        piece,
        st.integers(0, 30),
    )
    return piece | within


def structured(
    seeds: Sequence[bytes], count: int, start: int, take: Callable[[bytes], str]
) -> tuple[str, bytes] | None:
    """Give `take` so many inputs; the problem that it tells and the shortest input for it; None: there is none."""
    last: tuple[str, bytes] | None = None

    @seed(start)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(seeds))
    def give(data: bytes) -> None:
        nonlocal last
        if problem := take(data):
            last = problem, data
            raise _Failed

    if count:
        try:
            give()
        except _Failed:
            return last
    return None
