"""Requests that schemathesis draws from /openapi.json: such as fit the schemas, and such as do not."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.fuzz.attempt import Attempt

HOST = "http://localhost"


def drawn(document: dict[str, Any], count: int, start: int) -> Iterator[Attempt]:
    """About `count` attempts, shared among what can be drawn. A process of its own draws them, and they come as it
    does: in this one clients measure how long answers take.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    work = multiprocessing.get_context("spawn").Process(
        target=_draw_all, args=(document, count, start, sender), daemon=True
    )
    work.start()
    sender.close()
    try:
        while (attempt := receiver.recv()) is not None:
            yield attempt
    finally:
        work.kill()
        work.join()
        receiver.close()


def _draw_all(document: dict[str, Any], count: int, start: int, sender: Connection) -> None:
    """Sends each attempt, and then None. An operation that takes nothing is asked once: there is one way only."""
    schema = schemathesis.openapi.from_dict(document)
    wanted = []
    for result in schema.get_all_operations():
        operation = result.ok()
        takes = bool(list(operation.iter_parameters())) or bool(operation.body)
        wanted += [(operation, mode, takes) for mode in GenerationMode if takes or mode is GenerationMode.POSITIVE]
    each = max(1, count // max(1, sum(takes for _, _, takes in wanted)))
    for operation, mode, takes in wanted:
        with contextlib.suppress(Unsatisfiable):  # nothing can be wrong with it, as with an id that may be any text
            _draw(operation, mode, each if takes else 1, start, sender.send)
    sender.send(None)


def _draw(operation: Any, mode: GenerationMode, count: int, start: int, take: Callable[[Attempt], None]) -> None:
    label = f"{operation.method.upper()} {operation.path} {mode.name.lower()}"

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
        attempt = attempt_of(case, label, (operation.method, operation.path))
        if attempt is not None:
            take(attempt)

    give()


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
