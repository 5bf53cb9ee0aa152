"""Requests that an engine goes on with are told from those that began there."""

from __future__ import annotations

from typing import Any

from steps import record

from engine.protocol import Arrived, Joined, Left, RequestState, Row
from loadgen.continued import Continued, merged_counts


def joined(request: str, found: int, looked_up: int, **more: Any) -> Joined:
    return Joined(request, found, looked_up, "paged", more.pop("resumed", False), **more)


def drew(request: str, context: int, tokens: int = 1) -> Row:
    return Row(request, "decode", tokens, context, 0, 1)


def test_a_first_token_beyond_the_prompt_is_not_the_first() -> None:
    told = Continued()
    arrived = (Arrived("new", 100, 10, 0.0), Arrived("on", 50, 10, 0.0))
    told.add(record(1, 0.0, arrived=arrived, joined=(joined("new", 16, 100), joined("on", 32, 51))))
    told.add(record(2, 0.1, rows=(drew("new", 100, 84), drew("on", 51))))
    told.add(record(3, 0.2, rows=(drew("new", 101), drew("on", 52))))
    assert told.counts.figures() == {
        "continued_requests": 1,
        "continued_prompt_tokens": 50,
        "continued_looked_up_tokens": 51,
        "continued_found_tokens": 32,
    }


def test_a_preempted_request_is_no_other() -> None:
    """What it finds when it resumes is counted apart; one that drew its first token before is known."""
    told = Continued()
    told.begin([_state("old", 40, 45), _state("waits", 30, 30)])
    told.add(record(1, 0.0, joined=(joined("old", 16, 45, resumed=True), joined("waits", 8, 30))))
    told.add(record(2, 0.1, rows=(drew("old", 46), drew("waits", 30))))
    assert told.counts.requests == 0


def test_siblings_share_their_prompt_and_those_that_left_are_forgotten() -> None:
    told = Continued()
    arrived = (Arrived("a", 50, 9, 0.0), Arrived("b", 50, 9, 0.0, parent="a"), Arrived("gone", 50, 9, 0.0))
    told.add(record(1, 0.0, arrived=arrived, left=(Left("gone", "abort"),)))
    told.add(record(2, 0.1, joined=(joined("a", 0, 51), joined("b", 0, 0, parent="a", shared_tokens=50))))
    told.add(record(3, 0.2, rows=(drew("a", 51), drew("b", 51), drew("gone", 51))))
    whole = merged_counts([told, told])
    assert (whole.requests, whole.prompt_tokens, whole.looked_up_tokens) == (4, 100, 102)


def _state(request: str, prompt: int, tokens: int) -> RequestState:
    return RequestState(request, "waiting", prompt, 9, tokens, 0, 0, 0, 0.0, None, None, None, ())
