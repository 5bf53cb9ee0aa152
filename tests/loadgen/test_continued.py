"""Requests that an engine goes on with are told from those that began there."""

from __future__ import annotations

from typing import Any

from steps import record

from engine.protocol import Arrived, Joined, Left, RequestState, RequestStatus
from loadgen.continued import Continued, merged_counts


def joined(request: str, found: int, looked_up: int, **more: Any) -> Joined:
    return Joined(request, found, looked_up, "paged", more.pop("resumed", False), **more)


def came(request: str, generated: int = 0) -> Arrived:
    return Arrived(request, 50, 10, 0.0, generated_tokens=generated)


def test_what_comes_with_tokens_goes_on() -> None:
    told = Continued()
    told.add(record(1, 0.0, arrived=(came("new"), came("on", 1)), joined=(joined("new", 16, 50), joined("on", 32, 51))))
    told.add(record(2, 0.1, joined=(joined("on", 48, 60, resumed=True),)))  # after a preemption: counted elsewhere
    assert told.counts.figures() == {
        "continued_requests": 1,
        "continued_prompt_tokens": 50,
        "continued_looked_up_tokens": 51,
        "continued_found_tokens": 32,
    }


def test_those_that_were_there_before() -> None:
    told = Continued()
    told.begin(
        [_state("on", "receiving", 51), _state("new", "waiting", 50), _state("old", "waiting", 60, preemptions=1)]
    )
    told.add(record(1, 0.0, joined=(joined("on", 32, 51), joined("new", 16, 50), joined("old", 0, 60, resumed=True))))
    assert (told.counts.requests, told.counts.looked_up_tokens, told.counts.found_tokens) == (0, 51, 32)


def test_an_id_that_is_used_again_is_another_request() -> None:
    told = Continued()
    told.add(record(1, 0.0, arrived=(came("a", 3),), left=(Left("a", "abort"),)))
    told.add(record(2, 0.1, arrived=(came("a"),), joined=(joined("a", 16, 50),)))
    whole = merged_counts([told, told])
    assert (whole.requests, whole.found_tokens) == (2, 0)


def test_siblings_share_their_prompt() -> None:
    told = Continued()
    shares = joined("b", 0, 0, parent="a", shared_tokens=51)
    told.add(record(1, 0.0, arrived=(came("a", 1), came("b", 1)), joined=(joined("a", 0, 51), shares)))
    assert (told.counts.requests, told.counts.prompt_tokens) == (2, 50)


def _state(request: str, status: RequestStatus, tokens: int, preemptions: int = 0) -> RequestState:
    return RequestState(request, status, 50, 9, tokens, 0, 0, preemptions, 0.0, None, None, None, ())
