"""One request in full: what the inspector tells of the one that is selected, and its text as it streams."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from engine.protocol import RequestState, RequestText
from tui import figures
from tui.look import Look
from tui.panels import stays
from tui.panels.line import Line, breaks, clean, fit, short_id
from tui.panels.request_columns import shared
from tui.panels.waits import reason
from tui.view import Frame, View

NAME = 12  # cells
TEXT_LINES = 12  # the newest of the text
STRIDE_LINES = 64  # of text, between two places where its breaking into lines may begin
TABLE_LINES = 40


def detail(frame: Frame, width: int, look: Look) -> tuple[str, list[Line]]:
    view, request = frame.view, frame.focus.request
    if view is None or request is None:
        return "request", [[(" no request is selected", "dim")]]
    state = view.requests.get(request)
    title = f"request {short_id(request, 24)}"
    if state is None:
        gone: list[Line] = [[(" it is not here any more: it has ended", "dim")]]
        read = request in frame.texts.requests
        return title, [*gone, [], *_text(frame, request, width)] if read else gone
    lines = [_pair("id", clean(request)), *_columns(_figures(view, state), width)]
    if view.queue.head is not None and view.queue.head.request == request:
        lines.append(_pair("next, but", reason(view.queue.head, view.control, width - NAME - 2)))
    lines += [[], *_text(frame, request, width), [], *_table(state, width, look)]
    return title, lines


def _figures(view: View, state: RequestState) -> list[tuple[str, str]]:
    """Names and figures, those that go together after each other."""
    waiting = state.status == "waiting"
    since = stays.waiting_since(view, [state] if waiting else [])
    share = figures.percent(figures.ratio(state.cached_tokens, state.prompt_tokens))
    of_prompt = "" if state.preemptions else f", {share} of the prompt"  # one that came back finds its answer too
    others = shared(view, [state])[0]
    so_far = "" if not waiting else " since it was preempted" if state.preemptions else " so far"
    told = [
        ("state", stays.doing(state) + (f", {state.reason}" if state.reason else "")),
        ("arrived", f"{figures.seconds(max(0.0, view.now - state.arrived))} ago"),
        ("waited", figures.seconds(stays.waited(view, state, since)) + so_far),
        ("TTFT", figures.seconds(stays.ttft(state))),
        ("prompt", figures.plural(state.prompt_tokens, "token")),
        ("cached", figures.NOT_MEASURED if waiting else f"{figures.plural(state.cached_tokens, 'token')}{of_prompt}"),
        ("generated", f"{stays.generated(state):,} of at most {state.max_tokens:,}"),
        ("mean tok/s", stays.rate(stays.speed(view, state))),
        ("has KV", f"{state.computed_tokens:,} of {figures.plural(state.num_tokens, 'token')}"),
        ("blocks", f"{len(state.table):,}, {others:,} shared"),
        ("allocation", state.allocation or figures.NOT_MEASURED),
        ("preempted", figures.plural(state.preemptions, "time")),
        ("priority", f"{state.priority:,}"),
    ]
    if state.parent is not None:
        told.append(("forked off", short_id(state.parent, 24)))
    if state.swapped_tokens:
        told.append(("swapped out", figures.plural(state.swapped_tokens, "token")))
    if state.request in view.lanes:
        told.append(("batch row", f"{view.lanes[state.request] + 1:,}"))
    return told


def _columns(told: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Two figures a line where both have room."""
    pairs = [_pair(name, value) for name, value in told]
    if width < 76:
        return pairs
    half = width // 2
    rows = [pairs[index : index + 2] for index in range(0, len(pairs), 2)]
    return [[*fit(row[0], half), *(row[1] if len(row) > 1 else [])] for row in rows]


def _pair(name: str, told: str) -> Line:
    return [(f" {name:<{NAME}}", "dim"), (told, "text")]


def _text(frame: Frame, request: str, width: int) -> list[Line]:
    """The newest lines of its text, the prompt dim."""
    read, unknown = frame.texts.requests.get(request), frame.texts.unknown
    if read is None:
        return [[(f" text: {clean(frame.unread)}", "dim")]]
    lines, whole = _newest(read, max(1, width - 2))
    head = "text" if whole else f"text, the newest {TEXT_LINES} lines"
    out: list[Line] = [[(f" {head}", "dim"), (", of the prompt dim" if read.first < read.prompt_tokens else "", "dim")]]
    out += [[(" ", "text"), *line] for line in lines]
    if unknown:
        out.append([(f" no news of it: {clean(unknown)}", "dim")])
    return out


def _newest(read: RequestText, width: int) -> tuple[list[Line], bool]:
    """The last lines of at most `width` cells, and whether they are all there are."""
    prompt, answer = (
        "".join(texts).replace("\t", "    ")
        for texts in (
            read.texts[: max(0, read.prompt_tokens - read.first)],
            read.texts[max(0, read.prompt_tokens - read.first) :],
        )
    )
    text, first = prompt + answer, len(prompt)
    # Long texts are broken from a place that stays for a while, so that lines do not shift with every token.
    stride = STRIDE_LINES * width
    begin = max(0, len(text) - TEXT_LINES * width) // stride * stride
    broken = list(breaks(text, width, begin))
    lines: list[Line] = []
    for start, end in broken[-TEXT_LINES:]:
        parts = ((text[start : min(end, first)], "dim"), (text[max(start, first) : end], "value"))
        lines.append([(clean(part), role) for part, role in parts if part])
    return lines, not begin and len(broken) <= TEXT_LINES


def _table(state: RequestState, width: int, look: Look) -> list[Line]:
    """The block table in its order, adjacent blocks as ranges."""
    if not state.table:
        return [_pair("block table", "empty: it holds no block")]
    told = ranges(state.table, "-" if look.glyphs.ascii else "–")
    lines = wrap(told, max(12, width - NAME - 2), break_on_hyphens=False)
    out = [_pair("" if index else "block table", line) for index, line in enumerate(lines[:TABLE_LINES])]
    if len(lines) > TABLE_LINES:
        out.append(_pair("", f"and {len(lines) - TABLE_LINES:,} more lines"))
    return out


def ranges(blocks: Sequence[int], dash: str) -> str:
    """`12–18, 40, 44–47`: blocks in order, each run of adjacent ones by its ends."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][1] + 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    return ", ".join(f"{first}" if first == last else f"{first}{dash}{last}" for first, last in runs)
