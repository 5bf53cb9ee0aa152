"""Ratios keep the shape and compare numbers alone."""

from __future__ import annotations

from loadgen.compare import ratios


def test_ratios() -> None:
    a = {
        "summary": {"x": 2, "y": 0.5, "zero": 0, "gone": None, "name": "m", "ok": True, "only_a": 1},
        "engine": {"n": 4},
    }
    b = {
        "summary": {"x": 6, "y": 0.25, "zero": 3, "gone": 1.0, "name": "m", "ok": True},
        "engine": {"n": 4, "only_b": 1},
    }
    assert ratios(a, b) == {"summary": {"x": 3.0, "y": 0.5, "zero": None, "gone": None}, "engine": {"n": 1.0}}


def test_a_side_without_an_engine() -> None:
    assert ratios({"engine": None}, {"engine": {"n": 1}}) == {}


def test_nothing_in_common_is_left_out() -> None:
    assert ratios({"failures": {"HTTP error": 1}, "n": 1}, {"failures": {}, "n": 2}) == {"n": 2.0}
