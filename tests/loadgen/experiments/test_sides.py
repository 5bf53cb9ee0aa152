"""What sides ask for, and what is said of one that cannot be understood."""

from __future__ import annotations

import pytest

from loadgen.experiments.sides import ALLOWED, SideError, parse_sides
from loadgen.settings import Settings

OWN = Settings(file="t.jsonl", engine_args=("--model", "tiny"))
AT = Settings(file="t.jsonl", url="http://one:8000", model="m")


def test_metrics_elsewhere_are_of_one_server_alone() -> None:
    base = Settings(file="t", url="http://a", metrics_url="http://a:8002")
    a, b = parse_sides("speed=2", "url=http://b", base)
    assert (a.settings.metrics_url, b.settings.metrics_url) == ("http://a:8002", None)


def test_without_texts_the_sides_are_before_paging_and_after() -> None:
    a, b = parse_sides(None, None, OWN)
    assert (a.name, b.name) == ("static+reserved", "continuous+paged")
    assert a.settings.control == {"batching": "static", "allocation": "reserved"}
    assert b.settings.control == {"batching": "continuous", "allocation": "paged"}
    assert (a.settings.engine_args, a.settings.url) == (OWN.engine_args, None)


def test_one_side_alone_is_held_against_the_options() -> None:
    a, b = parse_sides(None, "prefix_cache=false", OWN)
    assert (a.name, a.settings) == ("as asked", OWN)
    assert (b.name, b.settings.control) == ("prefix_cache=false", {"prefix_cache": False})


def test_equal_sides_have_names_of_their_own() -> None:
    a, b = parse_sides("", "", OWN)
    assert (a.name, b.name) == ("as asked (A)", "as asked (B)")
    assert a.settings == b.settings == OWN


def test_every_kind_of_field() -> None:
    a, b = parse_sides(
        'name=small, engine-args="--kv-memory 64MiB --block-size 8", model=smollm2-135m, speed=2,concurrency=8,rate=3',
        'max-num-seqs=16,max_wait=2.5,chunked_prefill=0,arrivals="gamma:4,burstiness=0.5"',
        OWN,
    )
    assert a.name == "small"
    assert a.settings.engine_args == (
        *("--model", "tiny", "--model", "smollm2-135m"),
        *("--kv-memory", "64MiB", "--block-size", "8"),
    )
    assert (a.settings.speed, a.settings.concurrency, a.settings.arrivals) == (2.0, 8, "poisson:3")
    assert b.settings.control == {"max_num_seqs": 16, "max_wait": 2.5, "chunked_prefill": False}
    assert b.settings.arrivals == "gamma:4,burstiness=0.5"


def test_sides_at_servers() -> None:
    a, b = parse_sides("url=http://two:9000/v1,model=n", "users=4", AT)
    assert (a.settings.url, a.settings.model) == ("http://two:9000", "n")
    assert (b.settings.url, b.settings.model, b.settings.arrivals) == ("http://one:8000", "m", "users:4")
    a, _ = parse_sides("url=http://two:9000", None, OWN)
    assert (a.settings.url, a.settings.model, a.settings.engine_args) == ("http://two:9000", None, ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mode", "--a: expected NAME=VALUE between commas, like mode=static,alloc=reserved, got 'mode'"),
        ("mode=", "--a: expected NAME=VALUE"),
        ("=static", "--a: expected NAME=VALUE"),
        ("mode=fast", "--a: mode: expected one of continuous, static, got 'fast'"),
        ("batching=static,mode=static", "--a: mode: is given twice"),
        ("mode=static,mode=static", "--a: mode: is given twice"),
        ("colour=red", f"--a: there is no 'colour'; allowed are {ALLOWED}"),
        ("prefix_cache=maybe", "--a: prefix_cache: expected true or false, got 'maybe'"),
        ("max_num_seqs=many", "--a: max_num_seqs: expected a whole number, got 'many'"),
        ("max_wait=soon", "--a: max_wait: expected a number, got 'soon'"),
        ("speed=0", "--a: speed: expected a number above 0"),
        ("concurrency=1.5", "--a: concurrency: expected a whole number above 0"),
        ("url=ftp://x", "--a: url: expected an address like http://127.0.0.1:8000"),
        ("rate=3,users=2", "--a: users: not allowed beside rate; both say when sessions arrive"),
        ("arrivals=never", "--a: arrivals: 'never': there are no arrivals 'never'; allowed: recorded"),
        ('engine-args="--x', "--a: no closing quotation"),
        ("url=http://one:1,engine-args=--x", "--a: engine-args: only for an engine that loadgen starts"),
    ],
)
def test_a_side_that_cannot_be_understood(text: str, said: str) -> None:
    with pytest.raises(SideError) as told:
        parse_sides(text, None, OWN)
    assert str(told.value).startswith(said)


def test_on_one_server_both_sides_say_what_is_set() -> None:
    """Else the first run of one side would leave its control to the other."""
    with pytest.raises(SideError, match="--b: prefix_cache is missing: both sides are one server"):
        parse_sides("mode=static,prefix_cache=false", "mode=static", AT)
    with pytest.raises(SideError, match="--a: batching is missing"):
        parse_sides(None, "mode=static", AT)
    parse_sides("mode=static", "url=http://two:1,alloc=paged", AT)


def test_a_stop_rule_that_a_side_cannot_have() -> None:
    base = Settings(file="t.jsonl", url="http://one:8000", until=("saturation",))
    assert parse_sides("rate=2", "rate=3", base)[0].settings.until == ("saturation",)
    with pytest.raises(SideError, match=r"--b: --until saturation: the users of a closed loop"):
        parse_sides("rate=2", "users=3", base)
