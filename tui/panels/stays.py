"""What the state and the timeline together tell of one request: what it does, how long it waited, how fast it is.

Times that lie before the steps that a view carries are not known, and are None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from engine.protocol import RequestState
from tui import figures
from tui.history import Step, step_seconds
from tui.panels import timeline
from tui.panels.line import short_id
from tui.view import View

Doing = Literal["prefill", "decode", "held", "waiting", "preempted", "swapped"]
short_name = lru_cache(maxsize=8192)(short_id)  # an id is made fit for the screen once
DOINGS: tuple[Doing, ...] = ("prefill", "decode", "held", "waiting", "preempted", "swapped")


def doing(state: RequestState) -> Doing:
    """What a request does next, or waits for."""
    if state.status == "held":
        return "held"
    if state.status == "waiting":
        return "swapped" if state.swapped_tokens else "preempted" if state.preemptions else "waiting"
    first = state.num_tokens == state.prompt_tokens
    return "prefill" if first or state.num_tokens - state.computed_tokens > 1 else "decode"


def generated(state: RequestState) -> int:
    return state.num_tokens - state.prompt_tokens


def ttft(state: RequestState) -> float | None:
    """Seconds from arrival to the first token."""
    return None if state.first_token is None else state.first_token - state.arrived


def preempted_since(view: View, requests: Iterable[str]) -> dict[str, float]:
    """Of waiting requests that were preempted: the end of the last step that they were in, where it is kept."""
    left, found = set(requests), {}
    for step in reversed(view.steps):
        if not left:
            break
        for request in left.intersection(timeline.facts(step).preempted):
            found[request] = step.time
            left.discard(request)
    return found


def waiting_since(view: View, states: Iterable[RequestState]) -> dict[str, float]:
    """When the present wait of waiting requests began, of those for which it is known."""
    states = list(states)
    since = preempted_since(view, (state.request for state in states if state.preemptions))
    return since | {state.request: state.arrived for state in states if not state.preemptions}


def waited(view: View, state: RequestState, since: Mapping[str, float]) -> float | None:
    """Seconds up to now of one that waits, since its `waiting_since`; of one that runs, from arrival to its first row.

    None for one that came back after it was preempted: that it waited twice is not told by one figure.
    """
    if state.status == "waiting":
        began_to = since.get(state.request)
        return None if began_to is None else max(0.0, view.now - began_to)
    first = None if state.preemptions else _first_row(view, state)
    return None if first is None else max(0.0, first - state.arrived)


def speed(view: View, state: RequestState) -> float | None:
    """Tokens per second between its first token and its last; None before two of them, and while it has none made."""
    count = generated(state)
    if count < 2 or state.first_token is None or state.status == "waiting":
        return None
    last = _last_token(view, state)
    return None if last is None or last <= state.first_token else (count - 1) / (last - state.first_token)


def began(step: Step) -> float:
    """When a step's work began; its `time` is when its record was made."""
    return step.time - (step_seconds(step.durations) - step.durations.publish)


def _first_row(view: View, state: RequestState) -> float | None:
    """When the first step that a running request had a row in began, if that is certainly among the steps kept."""
    request, steps = state.request, view.steps
    lane = view.lanes.get(request)
    if lane is None or not steps or _has(steps[0], lane, request):
        return None
    low, high = 0, len(steps)  # it is not in the lane before `low`, and from `high` on only it is
    while low < high:
        middle = (low + high) // 2
        at = middle
        cell = steps[at].cells.get(lane)
        while cell is None and at + 1 < high:
            at += 1
            cell = steps[at].cells.get(lane)
        if cell is None or cell.request == request:
            high = middle
        else:
            low = at + 1
    index = next((index for index in range(low, len(steps)) if _has(steps[index], lane, request)), 0)
    first = steps[index]
    if not index or first.missing:
        return None
    # One that came before the steps kept may have begun before them too, unless another one had its lane.
    if state.arrived < began(steps[0]) and not any(step.cells.get(lane) for step in steps[:index]):
        return None
    return began(first)


def _last_token(view: View, state: RequestState) -> float | None:
    """The end of the newest step that made a token of a request that has its row."""
    lane, steps = view.lanes.get(state.request), view.steps
    if lane is None:
        return None
    low, high = 0, len(steps)  # a held row stays held: the first one follows the last token
    while state.status == "held" and low < high:
        middle = (low + high) // 2
        cell = steps[middle].cells.get(lane)
        if cell is not None and cell.request == state.request and cell.kind == "held":
            high = middle
        else:
            low = middle + 1
    for step in reversed(steps[:high]):
        cell = step.cells.get(lane)
        if cell is None or cell.kind == "held":
            continue
        if cell.request != state.request:
            return None
        return step.time if cell.kind != "prefill" or state.num_tokens - state.computed_tokens <= 1 else None
    return None


def _has(step: Step, lane: int, request: str) -> bool:
    cell = step.cells.get(lane)
    return cell is not None and cell.request == request


def rate(value: float | None) -> str:
    """Tokens per second of one request, as a figure: tenths below a hundred, where they matter."""
    return f"{value:,.1f}" if value is not None and value < 99.95 else figures.count(value)
