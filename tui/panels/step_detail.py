"""One step's record in full: what the inspector tells of the column under the batch's cursor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from textwrap import wrap

import msgspec

from engine.protocol import Durations, Joined, Preempted, Record, RowKind
from tui import figures
from tui.history import step_seconds
from tui.look import Glyphs, Look
from tui.panels.line import Line, clean, join, short_id
from tui.panels.waits import reason
from tui.view import Frame, View

ROWS_TOLD = 64  # of each list; how many more there are is said
KINDS: tuple[RowKind, ...] = ("prefill", "decode", "fork", "held")
NAME = 12  # cells


def detail(frame: Frame, width: int, look: Look) -> tuple[str, list[Line]]:
    view, seq = frame.view, frame.focus.batch.step
    if view is None:
        return "step", [[(" nothing heard yet", "dim")]]
    record = frame.step if seq is not None else frame.step or view.record
    if record is None:
        why = " no record was seen yet" if seq is None else f" record {seq:,} is not kept any more"
        return "step" if seq is None else f"step {seq:,}", [[(why, "dim")]]
    sections = (
        _head(view, record, width),
        _times(record, width, look.glyphs),
        _rows_by_kind(record, width),
        _who(record, width),
        _blocks(record, width, look.glyphs),
        _queue(record, width),
        _each_row(record, width),
    )
    lines: list[Line] = []
    for section in sections:
        if section:
            lines += [*([[]] if lines else []), *section]
    return f"step {record.seq:,}", lines


def _head(view: View, record: Record, width: int) -> list[Line]:
    control, tokens = record.control, sum(row.tokens for row in record.rows)
    share = figures.percent(figures.ratio(tokens, control.max_num_batched_tokens))
    since = figures.clock(max(0.0, record.time - view.engine.started))
    fault = wrap(clean(record.fault), max(12, width - NAME - 2))
    return [
        *(_pair("" if at else "fault", line, "bad") for at, line in enumerate(fault)),
        _pair("made", f"{figures.seconds(max(0.0, view.now - record.time))} ago, {since} after the engine's start"),
        _pair("modes", f"{control.batching}, {control.allocation}"),
        _pair("budget", f"{tokens:,} of {control.max_num_batched_tokens:,} tokens, {share}"),
        _pair("rows", f"{len(record.rows):,} of {control.max_num_seqs:,}"),
    ]


def _times(record: Record, width: int, glyphs: Glyphs) -> list[Line]:
    """Durations with their share of the step, and the parts of its forward with theirs of it, where measured."""
    whole = step_seconds(record.durations)
    if not whole:
        return []
    lines = [_pair("took", figures.seconds(whole))]
    spent = record.durations
    for name in ("schedule", "prepare", "transfer", "forward", "sample", "publish"):
        seconds: float = getattr(spent, name)
        if name == "transfer" and not seconds:
            continue
        lines.append(_share(f"  {name}", seconds, whole, width, glyphs))
        if name == "forward" and record.parts is not None:
            lines += _parts(spent, msgspec.structs.asdict(record.parts), width, glyphs)
    return lines


def _parts(spent: Durations, parts: dict[str, float], width: int, glyphs: Glyphs) -> list[Line]:
    if not spent.forward:
        return []
    return [_share(f"    {name}", seconds, spent.forward, width, glyphs) for name, seconds in parts.items()]


def _share(name: str, seconds: float, whole: float, width: int, glyphs: Glyphs) -> Line:
    """A duration, its percent of `whole`, and a bar as long."""
    share = seconds / whole
    room = max(0, width - 36)
    return [
        (f" {name:<16}", "dim"),
        (f"{seconds * 1000:>9,.1f} ms", "value"),
        (f"{100 * share:>5.0f} %", "text"),
        (" " + glyphs.line * min(room, round(room * share)), "latency"),
    ]


def _rows_by_kind(record: Record, width: int) -> list[Line]:
    """Sums over the rows of each kind."""
    if not record.rows:
        return [[(" no rows: it tells of changes made while nothing ran", "dim")]]
    lines = [_table("kind", "rows", ("tokens", "sampled", "context", "cached"), width, "dim")]
    for kind in KINDS:
        rows = [row for row in record.rows if row.kind == kind]
        if rows:
            sums = (
                sum(row.tokens for row in rows),
                sum(row.sampled for row in rows),
                sum(row.context for row in rows),
                sum(row.cached for row in rows),
            )
            lines.append(_table(kind, f"{len(rows):,}", tuple(f"{value:,}" for value in sums), width, "text"))
    return lines


def _each_row(record: Record, width: int) -> list[Line]:
    if not record.rows:
        return []
    lines = [_table("row", "kind", ("tokens", "sampled", "context", "cached"), width, "dim")]
    for row in record.rows[:ROWS_TOLD]:
        figure = tuple(f"{value:,}" for value in (row.tokens, row.sampled, row.context, row.cached))
        lines.append(_table(_name(row.request), row.kind, figure, width, "text"))
    return lines + _more(len(record.rows))


def _table(name: str, second: str, others: tuple[str, ...], width: int, role: str) -> Line:
    """Columns of nine cells, the last ones left out where there is no room."""
    parts = [[(f" {name:<{NAME}}", role)], [(f"{second:>8}", role)], *([(f"{text:>9}", role)] for text in others)]
    return join(parts, ("", role), width)


def _who(record: Record, width: int) -> list[Line]:
    """Who came, joined, was preempted, ended; with what they found, lost and cost."""
    lines: list[Line] = []
    arrived = [
        f"{figures.count(one.prompt_tokens)} prompt tokens, at most {one.max_tokens:,}" for one in record.arrived
    ]
    lines += _list("arrived", zip((one.request for one in record.arrived), arrived, strict=True), "text", width)
    lines += _list("joined", ((one.request, _joined(one)) for one in record.joined), "good", width)
    lines += _list("preempted", ((one.request, _preempted(one)) for one in record.preempted), "bad", width)
    failed = [one for one in (*record.held, *record.left) if one.reason == "error"]
    lines += _list("failed", ((one.request, "its answer ended with an error") for one in failed), "bad", width)
    held, left = ([one for one in ends if one.reason != "error"] for ends in (record.held, record.left))
    lines += _list("ended, held", ((one.request, one.reason) for one in held), "held", width)
    lines += _list("left", ((one.request, one.reason) for one in left), "text", width)
    lines += _list("released", ((request, "its static batch has ended") for request in record.released), "text", width)
    lines += _list("unreserved", ((request, "goes on paged") for request in record.unreserved), "text", width)
    return lines


def _list(title: str, entries: Iterable[tuple[str, str]], role: str, width: int) -> list[Line]:
    """A line for each request, and more where what is told of it needs them."""
    found = list(entries)
    lines: list[Line] = []
    for request, told in found[:ROWS_TOLD]:
        name = _name(request)
        texts = wrap(told, max(12, width - NAME - 2 - len(name))) or [""]
        lines.append([(f" {'' if lines else title:<{NAME}}", "dim"), (f"{name} ", role), (texts[0], "text")])
        lines += [[(" " * (NAME + 2 + len(name)), "dim"), (text, "text")] for text in texts[1:]]
    return lines + _more(len(found))


def _more(count: int) -> list[Line]:
    return [[(f" {'':<{NAME}}and {count - ROWS_TOLD:,} more", "dim")]] if count > ROWS_TOLD else []


def _joined(one: Joined) -> str:
    told = [f"{one.cached_tokens:,} of {one.looked_up_tokens:,} tokens looked up were cached"]
    if one.parent is not None:
        told = [f"forked off {_name(one.parent)}, shares {one.shared_tokens:,} tokens"]
    if one.resumed:
        told.insert(0, "resumed")
    counts = (
        (one.decoded_tokens, "with answers"),
        (one.copied_tokens, "copied"),
        (one.evicted_tokens, "evicted before"),
        (one.swapped_tokens, "brought back from host memory"),
        (one.recomputed_tokens, "computed again"),
    )
    return ", ".join([*told, *(f"{count:,} {what}" for count, what in counts if count), one.allocation])


def _preempted(one: Preempted) -> str:
    moved = f" ({figures.plural(one.swapped_blocks, 'block')} to host memory)" if one.swapped_blocks else ""
    costs = f"{figures.seconds(one.recompute_seconds)}, by swap {figures.seconds(one.swap_seconds)}"
    return f"by {one.by}{moved}: {one.lost_tokens:,} tokens; expected by recompute {costs}"


def _blocks(record: Record, width: int, glyphs: Glyphs) -> list[Line]:
    """Blocks it tells of by the state that they have now, and what it copied."""
    changed: Counter[str] = Counter(block.state for block in record.blocks)
    states = [f"{changed[state]:,} {state}" for state in msgspec.structs.asdict(record.pool) if changed[state]]
    pool = [f"{count:,} {state}" for state, count in msgspec.structs.asdict(record.pool).items()]
    lines = [
        *_wrapped("changed to", states or ["no block"], width),
        *_wrapped("pool now", pool, width),
    ]
    if record.cleared:
        lines.append(_pair("forgotten", f"{figures.plural(record.cleared, 'block')} of the prefix cache"))
    for index, copy in enumerate(record.copies[:ROWS_TOLD]):
        name = "copied" if not index else ""
        tokens = figures.plural(copy.tokens, "token")
        told = f"block {copy.source:,} {glyphs.arrow} {copy.target:,}, {tokens} for {_name(copy.request)}"
        lines.append(_pair(name, told))
    return lines + _more(len(record.copies))


def _queue(record: Record, width: int) -> list[Line]:
    queue = record.queue
    oldest = f", the oldest for {figures.seconds(queue.oldest_age)}" if queue.length else ""
    lines = [_pair("queue", f"{figures.plural(queue.length, 'request')}{oldest}")]
    if queue.head is not None:
        name = _name(queue.head.request)
        lines.append(_pair("next waits", f"{name}: {reason(queue.head, record.control, width - NAME - len(name) - 3)}"))
    return lines


def _pair(name: str, told: str, role: str = "text") -> Line:
    return [(f" {name:<{NAME}}", "dim"), (told, role)]


def _wrapped(name: str, words: list[str], width: int) -> list[Line]:
    """Words separated by commas, on as many lines as they need."""
    lines: list[list[str]] = [[]]
    for word in words:
        if lines[-1] and len(", ".join([*lines[-1], word])) > width - NAME - 3:
            lines.append([])
        lines[-1].append(word)
    return [_pair("" if index else name, ", ".join(line)) for index, line in enumerate(lines)]


def _name(request: str) -> str:
    return short_id(request, NAME)
