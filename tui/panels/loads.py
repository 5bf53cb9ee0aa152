"""Load generators that play against this engine: how far they are, and what they measured beside what it did.

What is the client's is said to be the client's. From due, from sent and inside the engine: the differences are what
waiting for a slot and the way to the engine cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.protocol import LiveLoad, LoadLatency, LoadRun
from tui import figures
from tui.history import Windows
from tui.look import Look
from tui.panels.line import Line, Span, clean, fit, join, length
from tui.panels.measures import E2E, TPOT, TTFT
from tui.view import Frame

FULL_ROWS = 3  # of one load: its progress, its latencies, and the engine's under them
STALE = 3.0  # seconds without a word, from which on that is told
LATE = 0.05  # seconds that its event loop wakes late, from which on its figures are doubtful
_FULL_WIDTH = 76
_NARROW = 60  # cells below which names go
_LABEL, _CELL = 17, 19  # cells of a row's name, and of a latency's two percentiles at least
_ROOMY = 24  # cells from which on they have longer names
_WHOLE = 0.9  # of a run's seconds: where less was seen of the engine, that is told
_KNOWN = 32
_BAR = 10
_SHARE = 10  # rows of the screen, of which loads take one
_GAP = ("  ", "text")


def rows(frame: Frame, width: int, body: int) -> tuple[int, ...]:
    """How many of `body` lines they may take, the best first; nothing where there is no load."""
    most = min(FULL_ROWS, max(1, body // _SHARE))
    if len(frame.loads) == 1:
        return (FULL_ROWS, 1) if most == FULL_ROWS and width >= _FULL_WIDTH else (1,)
    return tuple(range(min(len(frame.loads), most), 0, -1))


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    loads = frame.loads
    if len(loads) == 1 and height >= FULL_ROWS:
        first = join([_head(frame, loads[0], width), *_progress(loads[0].run, width, look)], _GAP, width)
        return [first, *_latencies(frame, loads[0].run, width)]
    shown = loads[:height]
    hidden = len(loads) - len(shown)
    more: Line = [(f"  +{hidden} more", "dim")] if hidden else []
    lines = [_line(frame, load, width - length(more)) for load in shown]
    return [*lines[:-1], [*lines[-1], *more]] if lines else []


def details(frame: Frame, load: LiveLoad, width: int, look: Look) -> list[Line]:
    """All that a load told, in as many lines as it needs."""
    run = load.run
    parts = [_head(frame, load, width), *_progress(run, width, look), *_rest(run)]
    return [*_flow(parts, width), *_latencies(frame, run, width)]


def _line(frame: Frame, load: LiveLoad, width: int) -> Line:
    """A load in one line: what is wrong comes first, and then what its users wait for."""
    run = load.run
    parts = [_head(frame, load, width), _figure(f"{_ended(run):,}/{run.turns:,}", "turns"), *_troubles(run)]
    wordings = _ttft(frame, run)
    room = width - length(join(parts, _GAP, width)) - len(_GAP[0])
    parts.append(next((words for words in wordings if length(words) <= room), wordings[-1]))
    parts += [_figure(f"{run.in_flight:,}", "in flight"), *_lags(run)]
    return join(parts, _GAP, width)


def _head(frame: Frame, load: LiveLoad, width: int) -> Line:
    run, past = load.run, frame.status.past is not None
    name = clean(f"{run.label} of {run.trace}" if width >= 120 and run.trace else run.label)
    head: Line = [(" client", "title"), (" at the pause" if past else "", "dim")]
    if width >= _NARROW:
        head.append((f" {name[: width // 4]}", "value"))
    if load.age >= STALE and not past:
        head.append((f" no word for {figures.seconds(load.age)}", "warn"))
    return head


def _progress(run: LoadRun, width: int, look: Look) -> list[Line]:
    """How far it is, and its turns by what has become of them."""
    done = round(run.share * _BAR)
    bar: Line = [(look.glyphs.line * done, "mode"), (look.glyphs.rest * (_BAR - done), "faint")]
    left = f", {figures.clock(run.left)} left" if run.left is not None and not run.stopping else ""
    parts: list[Line] = [
        [*(bar if width >= 100 else []), (f" {figures.percent(run.share)}" if width >= 100 else "", "value")],
        [(figures.clock(run.elapsed), "value"), (left, "dim")],
        _figure(f"{run.sessions_done:,}/{run.sessions:,}", "sessions"),
        _figure(f"{_ended(run):,}/{run.turns:,}", "turns"),
        *(_troubles(run) or [[("none failed", "dim")]]),
        _figure(f"{run.in_flight:,}", "in flight"),
        *([[(f"{run.queued:,}", "queue"), (" queued", "dim")]] if run.queued else []),
        *([[("speed ", "dim"), (f"{run.speed:g}x", "value")]] if run.speed != 1 else []),
        *_lags(run),
    ]
    return [part for part in parts if length(part)]


def _rest(run: LoadRun) -> list[Line]:
    """What is told where there is room for everything."""
    parts = [
        _figure(f"{run.due:,}", "due"),
        _figure(f"{run.sent:,}", "sent"),
        _figure(f"{run.completed:,}", "completed"),
        _figure(f"{run.output_tokens:,}", "output tokens"),
        _figure(figures.percent(run.cpu_share), "of a core"),
    ]
    if run.loop_lag is not None:
        role = "warn" if run.loop_lag >= LATE else "text"
        parts.append([("its event loop late p99 ", "dim"), (figures.seconds(run.loop_lag), role)])
    if run.failure:
        parts.append([(clean(run.failure), "bad")])
    return parts


def _troubles(run: LoadRun) -> list[Line]:
    parts: list[Line] = []
    if run.failed:
        parts.append([(f"{run.failed:,} failed", "bad")])
    if run.stopping:
        parts.append([(f"stopping: {clean(run.stopping)}", "warn")])
    if run.bottleneck:
        parts.append([("too slow itself", "warn")])
    return parts


def _lags(run: LoadRun) -> list[Line]:
    return [] if run.send_lag is None else [[("send lag p99 ", "dim"), (figures.seconds(run.send_lag), "text")]]


def _ended(run: LoadRun) -> int:
    return run.completed + run.failed


def _figure(value: str, name: str) -> Line:
    return [(value, "value"), (f" {name}", "dim")]


# Latencies


@dataclass(frozen=True, slots=True)
class _Own:
    """What the engine did in the seconds of a run, of which so many were `observed`: p50 and p99 in words."""

    ttft: tuple[str, str]
    tpot: tuple[str, str]
    e2e: tuple[str, str]
    observed: float


def _ttft(frame: Frame, run: LoadRun) -> list[Line]:
    """Its TTFT from due and from sent and the engine's own: wordings, the most telling first."""
    own = _engine(frame, run)
    due: Line = [("due ", "dim"), _shown(run.ttft_scheduled.p50, run.ttft_scheduled)]
    sent: Line = [("sent ", "dim"), _shown(run.ttft.p50, run.ttft)]
    engine: list[Line] = []
    if own:
        part = own.observed < run.elapsed * _WHOLE
        engine = [[("engine ", "dim"), (own.ttft[0], "latency"), (f" of {_span(own)}" if part else "", "dim")]]
    choices: list[list[Line]] = [[due, sent, *engine], [due, *engine], [due]]
    return [[("TTFT p50 ", "dim"), *join(choice, (", ", "dim"), 1_000)] for choice in choices]


def _span(own: _Own) -> str:
    return figures.seconds(own.observed)


def _shown(value: float | None, latency: LoadLatency) -> Span:
    if value is None and latency.requests:
        return "failed", "bad"
    return figures.seconds(value), "latency"


def _latencies(frame: Frame, run: LoadRun, width: int) -> list[Line]:
    """The client's latencies in one line, and under them the engine's over the same seconds, as far as it saw them."""
    count = min(5, max(1, (width - _LABEL) // _CELL))
    cell = (width - _LABEL) // count
    due = "from due" if cell >= _ROOMY else "due"
    own = _engine(frame, run)
    told = (
        ("TTFT", run.ttft, own and own.ttft), (due, run.ttft_scheduled, None), ("TPOT", run.tpot, own and own.tpot),
        ("E2E", run.e2e, own and own.e2e), (due, run.e2e_scheduled, None),
    )[:count]  # fmt: skip
    client = fit([(" client p50, p99", "dim")], _LABEL)
    engine = fit([(" engine p50, p99", "dim")], _LABEL)
    over: Line = [("over ", "dim"), (_span(own), "text"), (" seen", "dim")] if own else []
    for name, latency, pair in told:
        client += fit(_pair(name, _shown(latency.p50, latency), _shown(latency.p99, latency)), cell)
        engine += fit(_pair(name, (pair[0], "latency"), (pair[1], "latency")) if pair else over, cell)
        over = over if pair else []
    return [client, engine] if own else [client]


def _pair(name: str, p50: Span, p99: Span) -> Line:
    return [(f"{name} ", "dim"), p50, (", ", "dim"), p99]


_known: list[tuple[LoadRun, Windows, _Own]] = []  # of the last words: frames come oftener


def _engine(frame: Frame, run: LoadRun) -> _Own | None:
    """The engine's figures at the moment of the load's word; None where the view is of another one."""
    if frame.view is None or frame.status.past is not None:
        return None
    history, now = frame.view.history, frame.view.now
    for word, of, known in _known:
        if word is run and of is history:
            return known
    window = history.window(now - run.elapsed, now)
    ttft, tpot, e2e = (
        (measures[0].show(measures[0].of(window)), measures[2].show(measures[2].of(window)))
        for measures in (TTFT, TPOT, E2E)
    )
    own = _Own(ttft, tpot, e2e, window.observed)
    _known[:] = [*_known[-_KNOWN:], (run, history, own)]
    return own


def _flow(parts: Sequence[Line], width: int) -> list[Line]:
    """Parts side by side, on as many lines as they need."""
    lines: list[Line] = []
    for part in parts:
        if lines and length(lines[-1]) + len(_GAP[0]) + length(part) <= width:
            lines[-1] += [_GAP, *part]
        else:
            lines.append([*([_GAP] if lines else []), *part])
    return [fit(line, width) if length(line) > width else line for line in lines]
