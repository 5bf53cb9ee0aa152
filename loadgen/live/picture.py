"""The picture of a run on a terminal: text of any width and height, from what was counted and measured.

It is laid out by hand, line by line, so that each size of terminal has all that there is room for and nothing is cut
where it would mislead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from rich.text import Text

from loadgen.durations import clock
from loadgen.live import lines
from loadgen.live.columns import ASCII, EIGHTHS, columns
from loadgen.live.history import History
from loadgen.live.state import RunState
from loadgen.metrics.histogram import Histogram
from loadgen.outcome import Outcome

LATELY = 5.0  # seconds that what is so "now" looks back
WIDE = 120  # columns from which on charts stand beside the latencies
NARROW = 64  # columns below which the latencies from sent and the largest ones are left out
HIGHEST = 8  # lines of a chart
LOW = 20  # lines below which one kind of failure is told
MOST_KINDS = 3  # and from there on

LATENCIES = (
    ("TTFT  from sent", "ttft"),
    ("      from scheduled", "ttft_scheduled"),
    ("TPOT", "tpot"),
    ("E2E   from sent", "e2el"),
    ("      from scheduled", "e2el_scheduled"),
    ("send lag", "send_lag"),
)
FROM_SCHEDULED = (("TTFT", "ttft_scheduled"), ("TPOT", "tpot"), ("E2E", "e2el_scheduled"))
LABEL, NOTE, CELL = 13, 18, 9  # columns of a chart's label and of its note, and of a number

Block = list[Text]


class Picture:
    """Draws states. What it keeps of those before is bounded: the run's history, and a few of the last seconds."""

    def __init__(self, ascii_only: bool = False) -> None:
        self._glyphs = ASCII if ascii_only else EIGHTHS
        self._bar = "#-" if ascii_only else "━─"
        self._history = History()
        self._lately = deque[RunState]()

    def take(self, state: RunState) -> None:
        """Know one more state; the last one is what is drawn."""
        self._history.take(state)
        while len(self._lately) > 1 and state.elapsed - self._lately[1].elapsed >= LATELY:
            self._lately.popleft()
        self._lately.append(state)

    def draw(self, width: int, height: int) -> Text:
        """The last state in at most `height` lines of `width` columns; what matters least is left out first."""
        state, before = self._lately[-1], self._lately[0]
        head = [*_head(state, width, self._bar), *_failures(state, width, MOST_KINDS if height >= LOW else 1)]
        room = height - len(head)
        if width >= WIDE:
            half = (width - 4) // 2
            right = _joined([_latencies(state, LATENCIES, half), _foot(state, before, half)], gap=1)
            charts = self._charts(half, min(room - 1, max(len(right), 3 * HIGHEST + 1)))
            body = [Text(), *_beside(charts, right, half)]
        else:
            body = self._stacked(state, before, width, room)
        shown = [*head, *body][: max(1, height)]
        for line in shown:
            line.truncate(width)
        return Text("\n", no_wrap=True, end="").join(shown)

    def _stacked(self, state: RunState, before: RunState, width: int, room: int) -> Block:
        foot = _foot(state, before, width)
        full = FROM_SCHEDULED if width < NARROW else LATENCIES
        for shown, last, gap, least in ((full, foot, 1, 4), (full, foot, 0, 4), (FROM_SCHEDULED, foot, 0, 2)):
            table = _latencies(state, shown, width)
            left = room - len(last) - len(table) - 3 * gap
            if left >= least:
                return _joined([[], self._charts(width, left), table, last], gap)
        table = _latencies(state, FROM_SCHEDULED, width)
        return [*self._charts(width, room - len(table)), *table]

    def _charts(self, width: int, room: int) -> Block:
        """Arrivals, completions and what is in flight over the whole run, in at most `room` lines."""
        state, before = self._lately[-1], self._lately[0]
        across = max(1, width - LABEL - NOTE)
        stretches = self._history.stretches(across)
        arrivals, completions = [s.arrivals for s in stretches], [s.completions for s in stretches]
        in_flight = [float(s.in_flight) for s in stretches]
        most = max((*arrivals, *completions), default=0.0)
        charts = [
            ("arrivals", arrivals, most, f"{lines.number(lines.rate(before, state, 'due'))}/s"),
            ("completions", completions, most, f"{lines.number(lines.rate(before, state, 'completed'))}/s"),
            ("in flight", in_flight, max(in_flight, default=0.0), f"{state.in_flight:,}"),
        ]
        headed = room > len(charts)
        rows = min(HIGHEST, max(1, (room - headed) // len(charts)))
        block: Block = []
        if headed:
            column = f", a column is {stretches[0].seconds:.0f} s" if stretches else ""
            block.append(Text(f"{'turns':{LABEL}}the run so far{column}", "dim"))
        for name, values, top, now in charts[: max(0, room)]:
            scale = f"top {lines.number(top)}" if values is not in_flight else f"top {top:,.0f}"
            drawn = columns(values, rows, top, self._glyphs)
            for row, cells in enumerate(drawn):
                label = name if row == 0 else ""
                note = f"{now}  {scale if rows == 1 else ''}" if row == 0 else scale if row == 1 else ""
                block.append(
                    Text.assemble((f"{label:{LABEL}}", "dim"), (f"{cells:{across}}", "cyan"), (f"  {note}", ""))
                )
        return block


def _head(state: RunState, width: int, bar: str) -> Block:
    """How far it is, and the turns by what has become of them."""
    times = [clock(state.elapsed)]
    if state.stopping:
        times.append(f"stopping: {state.stopping}")
    elif (left := state.left) is not None:
        times.append(f"about {clock(left)} left")
    when = ", ".join(times)
    label, percent = f"{state.label}  ", f" {state.share:4.0%}"
    beside = width >= NARROW and len(when) < width // 3
    across = max(4, width - len(label) - len(percent) - (len(when) + 2 if beside else 0))
    done = round(state.share * across)
    first = Text.assemble(
        (label, "bold"), (bar[0] * done, "green"), (bar[1] * (across - done), "dim"), percent,
        f"  {when}" if beside else "",
    )  # fmt: skip
    parts = [
        "" if beside else when,
        f"sessions {state.sessions_done:,}/{state.sessions:,}",
        f"turns {state.completed + state.failed:,}/{state.turns:,}",
        f"in flight {state.in_flight:,}",
        f"waiting{'' if width < NARROW else ' for a slot'} {state.queued:,}" if state.queued else "",
        f"failed {state.failed:,}" if state.failed else "none failed",
        f"speed {state.speed:g}x" if width < NARROW else lines.speed(state),
    ]
    return [first, *_flow(parts, width)]


def _failures(state: RunState, width: int, most: int) -> Block:
    """How many of each kind, causes before consequences and many before few, and what the first one of it said."""
    kinds = sorted(state.failures.items(), key=lambda kind: (kind[0] is Outcome.NOT_SENT, -kind[1]))
    rest = sum(count for _, count in kinds[most:])
    block: Block = []
    for outcome, count in kinds[:most]:
        words = " ".join(state.first_failures.get(outcome, "").split())
        words = "".join(letter if letter.isprintable() else "?" for letter in words)  # a server wrote them
        others = f", {rest:,} of other kinds" if rest and outcome is kinds[most - 1][0] else ""
        told = Text.assemble((f"{count:,} {outcome}{others}", "red bold"), f"  {words}" if words else "")
        told.truncate(width, overflow="ellipsis")
        block.append(told)
    return block


def _latencies(state: RunState, shown: Sequence[tuple[str, str]], width: int) -> Block:
    """Percentiles of all that have ended so far; those that failed count as infinitely slow."""
    full = width >= NARROW
    label = 22 if full else max(1, width - 3 * CELL)
    title = "latency so far, ms" if full else "ms, scheduled"
    heads = ("p50", "p90", "p99", *(("max", "requests") if full else ()))
    block = [Text(f"{title:{label}}" + "".join(f"{head:>{CELL}}" for head in heads), "dim")]
    for name, key in shown:
        histogram = state.latencies.get(key, Histogram())
        cells = [_milliseconds(value, histogram) for value in histogram.percentiles((50, 90, 99))]
        if full:
            cells += ["-" if histogram.maximum is None else lines.number(histogram.maximum), f"{histogram.count:,}"]
        block.append(Text.assemble((f"{name:{label}}", "dim"), "".join(f"{cell:>{CELL}}" for cell in cells)))
    return block


def _milliseconds(value: float | None, histogram: Histogram) -> str:
    if value is not None:
        return lines.number(value)
    return "failed" if histogram.infinite else "-"


def _foot(state: RunState, before: RunState, width: int) -> Block:
    """Tokens, and loadgen itself."""
    given = f"{state.input_tokens:,} input tokens"
    told = _flow([f"{lines.number(lines.rate(before, state, 'chunks'))} chunks/s", lines.tokens(state)], width)
    if len(told) == 1 and told[0].cell_len + len(given) + 3 <= width:
        told[0].append(f"   {given}")
    if trouble := lines.own_trouble(state):
        warning = Text(f"! {trouble}", "yellow")
        warning.truncate(width, overflow="ellipsis")
        return [*told, warning]
    if not state.processes:
        return told
    shares = [
        process.cpu_share_since(then)
        for process, then in zip(state.processes, before.processes or state.processes, strict=False)
    ]
    count = len(state.processes)
    several = f"{count} processes, the busiest at " if count > 1 else "CPU "
    late = max((process.p99_lag_ms or 0.0 for process in state.processes), default=0.0)
    lately = max((process.late_ms or 0.0 for process in state.processes), default=0.0)
    parts = [
        f"loadgen {several}{max(shares, default=0.0):.0%} of a core",
        f"event loop late by {lines.number(late)} ms at p99, lately {lines.number(lately)} ms",
    ]
    return [*told, *_flow(parts, width)]


def _flow(parts: Iterable[str], width: int) -> Block:
    """Parts side by side, on as many lines as they need."""
    found: list[str] = []
    between = "  " if width < NARROW else "   "
    for part in filter(None, parts):
        if found and len(found[-1]) + len(between) + len(part) <= width:
            found[-1] += f"{between}{part}"
        else:
            found.append(part)
    return [Text(line[:width]) for line in found]


def _joined(blocks: Iterable[Block], gap: int) -> Block:
    """Blocks below each other with empty lines between them; a block without lines makes an empty line before it."""
    joined: Block = []
    for number, block in enumerate(blocks):
        joined += [Text()] * gap * bool(number) + block
    return joined


def _beside(left: Block, right: Block, width: int) -> Block:
    """Two blocks side by side, the left one `width` columns wide."""
    rows = max(len(left), len(right))
    padded = [*left, *[Text()] * (rows - len(left))]
    lines_right = [*right, *[Text()] * (rows - len(right))]
    return [
        Text.assemble(one, " " * (width - one.cell_len + 4), other)
        for one, other in zip(padded, lines_right, strict=True)
    ]
