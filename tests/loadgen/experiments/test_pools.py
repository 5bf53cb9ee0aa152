"""Pools of a side: what is said of them, and that both sides have equal resources."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loadgen.experiments.pools import Pools, Shape, parse_pools, shapes
from loadgen.experiments.sides import SideError, one_server, parse_sides
from loadgen.settings import Settings

OWN = Settings(file="t.jsonl", engine_args=("--model", "tiny"))
AT = Settings(file="t.jsonl", url="http://one:8000")


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        ("separated", Pools("separated")),
        ("colocated", Pools("colocated")),
        ("1P1D", Pools("separated", Shape(1, 1))),
        ("2p3d", Pools("separated", Shape(2, 3))),
        ("2R", Pools("colocated", Shape(replicas=2))),
        ("1P1D2R", Pools("separated", Shape(1, 1, 2))),
    ],
)
def test_what_can_be_said(text: str, pools: Pools) -> None:
    assert parse_pools(text) == pools


@pytest.mark.parametrize("text", ["", "1P", "2D", "0P0D", "0R", "1P0D", "apart", "1P1D ", "-1P1D"])
def test_what_cannot(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected separated, colocated, or workers as in 1P1D"):
        parse_pools(text)


def test_a_side_takes_the_workers_of_the_other() -> None:
    assert shapes(parse_pools("colocated"), parse_pools("2P1D")) == (Shape(2, 1), Shape(2, 1))
    assert shapes(parse_pools("separated"), parse_pools("colocated")) == (Shape(1, 1), Shape(1, 1))
    assert shapes(None, parse_pools("2R")) == (None, Shape(replicas=2))
    with pytest.raises(ValueError, match="1P1D has 2 workers and 1R has 1 worker: sides are compared at equal"):
        shapes(parse_pools("1P1D"), parse_pools("1R"))


def test_one_cluster_is_started_for_both_sides() -> None:
    a, b = parse_sides("pools=colocated", "pools=1P1D", OWN)
    assert (a.name, a.settings.pools, b.name, b.settings.pools) == ("colocated", "colocated", "1P1D", "separated")
    assert a.settings.engine_args == b.settings.engine_args == ("--model", "tiny", "--prefill", "1", "--decode", "1")
    assert one_server(a, b)


def test_other_workers_are_another_cluster() -> None:
    a, b = parse_sides("pools=1P1D", "pools=2R", OWN)
    assert a.settings.engine_args[2:] == ("--prefill", "1", "--decode", "1")
    assert b.settings.engine_args[2:] == ("--replicas", "2")
    assert not one_server(a, b)


def test_one_engine_against_a_cluster() -> None:
    a, b = parse_sides("", "pools=1P1D", OWN)
    assert (a.settings.engine_args, a.settings.pools) == (OWN.engine_args, None)
    assert (b.settings.pools, one_server(a, b)) == ("separated", False)


def test_arguments_of_the_engine_may_size_it() -> None:
    sized = msgspec.structs.replace(OWN, engine_args=("--prefill", "2", "--decode=1"))
    a, b = parse_sides("pools=colocated", "pools=separated", sized)
    assert a.settings.engine_args == b.settings.engine_args == sized.engine_args
    with pytest.raises(SideError, match="--a: pools: the engine's arguments say how many workers there are, too"):
        parse_sides("pools=colocated", "pools=1P1D", sized)


def test_a_cluster_that_runs_is_switched() -> None:
    a, b = parse_sides("pools=colocated", "pools=separated", AT)
    assert (a.settings.pools, b.settings.pools, a.settings.engine_args) == ("colocated", "separated", ())
    assert one_server(a, b)


@pytest.mark.parametrize(
    ("a", "b", "base", "said"),
    [
        ("pools=two", None, OWN, "--a: pools: expected separated, colocated, or workers as in 1P1D"),
        ("pools=colocated", None, AT, "--b: pools is missing: both sides are one server"),
        ("pools=colocated", "pools=1P1D", AT, "--b: pools: 1P1D: only for a cluster that loadgen starts"),
        ("pools=1P1D", "pools=3R", OWN, "pools: 1P1D has 2 workers and 3R has 3 workers"),
        (
            "pools=colocated,chunked_prefill=false",
            "pools=separated",
            OWN,
            "--b: chunked_prefill is missing: both sides are one server",
        ),
    ],
)
def test_sides_that_make_no_comparison(a: str, b: str | None, base: Any, said: str) -> None:
    with pytest.raises(SideError) as told:
        parse_sides(a, b, base)
    assert str(told.value).startswith(said)
