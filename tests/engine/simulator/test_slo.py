"""Limits as people write them."""

from __future__ import annotations

import pytest

from engine.simulator.slo import Slo, parse_slo


def test_limits_are_read_and_kept_to() -> None:
    slo = parse_slo("ttft=500ms, itl=0.05,e2e=10s")
    assert slo == Slo(ttft=0.5, itl=0.05, e2e=10.0)
    assert slo.met(0.5, 0.05, 10.0)
    assert not slo.met(0.5, 0.051, 1.0)
    assert parse_slo("itl=1s").met(99.0, 1.0, 99.0)


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=", "ttft=0", "ttft=-1", "ttft=1m", "tpot=1s", "itl=1s,itl=2s", "itl=nan"]
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ttft=500ms"):
        parse_slo(text)
