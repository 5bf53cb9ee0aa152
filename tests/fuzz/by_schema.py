"""Requests that schemathesis draws from /openapi.json: such as fit the schemas, and such as do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.fuzz.attempt import Attempt

HOST = "http://localhost"


class Enough(Exception):
    """No more attempts are wanted."""


def draw(document: dict[str, Any], count: int, start: int, take: Callable[[Attempt], None]) -> int:
    """Give `take` about `count` attempts, shared among what can be drawn; returns how many. `take` may raise Enough.

    An operation that takes nothing is asked once: there is one way only.
    """
    schema = schemathesis.openapi.from_dict(document)
    wanted = []
    for result in schema.get_all_operations():
        operation = result.ok()
        takes = bool(list(operation.iter_parameters())) or bool(operation.body)
        wanted += [(operation, mode, takes) for mode in GenerationMode if takes or mode is GenerationMode.POSITIVE]
    each = max(1, count // max(1, sum(takes for _, _, takes in wanted)))
    drawn = 0
    for operation, mode, takes in wanted:
        try:
            drawn += _draw(operation, mode, each if takes else 1, start, take)
        except Unsatisfiable:  # nothing can be wrong with it, as with an id that may be any text
            continue
        except Enough:
            break
    return drawn


def _draw(operation: Any, mode: GenerationMode, count: int, start: int, take: Callable[[Attempt], None]) -> int:
    label = f"{operation.method.upper()} {operation.path} {mode.name.lower()}"
    drawn = 0

    @seed(start)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def give(case: Any) -> None:
        nonlocal drawn
        attempt = attempt_of(case, label, (operation.method, operation.path))
        if attempt is not None:
            drawn += 1
            take(attempt)

    give()
    return drawn


def attempt_of(case: Any, label: str, operation: tuple[str, str]) -> Attempt | None:
    """A drawn case as bytes; None for one that no client could send."""
    try:
        prepared = requests.Request(**_sent(case)).prepare()
    except (requests.RequestException, UnicodeError, ValueError):
        return None
    body = prepared.body or b""
    if not isinstance(body, bytes | str):
        return None
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    lines = [f"{prepared.method} {prepared.path_url} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {_text(value)}" for name, value in prepared.headers.items()]
    try:
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    except UnicodeEncodeError:
        return None
    return Attempt(label, (head + data,), method=str(prepared.method), operation=operation)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _sent(case: Any) -> dict[str, Any]:
    taken = ("method", "url", "headers", "params", "json", "data", "files", "cookies")
    return {name: value for name, value in case.as_transport_kwargs(base_url=HOST).items() if name in taken}
