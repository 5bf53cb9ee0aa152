"""What prefills cost the decodes beside them: steps of decodes alone against those with a prefill in them, while
workers served whole requests and since prompts are prefilled apart."""

from __future__ import annotations

from collections.abc import Sequence

from engine.cluster.protocol import Interference, StepTimes
from tui import figures
from tui.cluster.view import ClusterView
from tui.commands import Key, Reaction
from tui.look import Look
from tui.panels.cluster import steering
from tui.panels.line import Line, box, clean, spread
from tui.view import Frame

KEYS: tuple[Key, ...] = ()
_NAME, _CELL = 16, 9
_HEADS = ("steps", "p50", "p99", "max")
WORDS = (
    "Steps that had a decode in them, as engines timed them: with decodes alone, or with prompt tokens beside. A "
    "prefill in a decode's step holds that decode up, which separate pools avoid.",
    "Steps and their mean are of all; p50, p99 and max are of each worker's newest 1,024, and of several workers the "
    "worst one's is shown: there is no p99 of all that could be had from theirs.",
)
answer = steering.answer


def together(parts: Sequence[StepTimes]) -> StepTimes:
    """Of several workers: what can be added up is, and of quantiles the worst worker's is told."""
    seen = [part for part in parts if part.steps]
    return StepTimes(
        sum(part.steps for part in seen),
        sum(part.seconds for part in seen),
        max((part.p50 for part in seen if part.p50 is not None), default=None),
        max((part.p99 for part in seen if part.p99 is not None), default=None),
        max((part.max for part in seen if part.max is not None), default=None),
    )


def of_cluster(view: ClusterView, separate: bool) -> Interference:
    parts = [worker.separated if separate else worker.colocated for worker in view.state.workers]
    return Interference(together([part.alone for part in parts]), together([part.mixed for part in parts]))


def mixed_share(times: Interference) -> float | None:
    """Of the steps with decodes, those that had a prefill too."""
    return figures.ratio(times.mixed.steps, times.alone.steps + times.mixed.steps)


def mean(times: Interference) -> float | None:
    """Seconds that a step with decodes took."""
    return figures.ratio(times.alone.seconds + times.mixed.seconds, times.alone.steps + times.mixed.steps)


def longest(times: Interference) -> float | None:
    return max((part.max for part in (times.alone, times.mixed) if part.max is not None), default=None)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view, inner, front = frame.cluster, width - 2, frame.focus.panel == "interference"
    if view is None:
        return box("interference", [], [], width, height, look.glyphs, front=front)
    colocated, separated = of_cluster(view, False), of_cluster(view, True)
    several = sum(_seen(worker.colocated) or _seen(worker.separated) for worker in view.state.workers) > 1
    room = height - 2
    short = room < 9
    body: list[Line] = [_heads("in ms" if inner < 60 else "steps in ms", inner, look)]
    for name, times, now in (
        ("colocated", colocated, not view.control.separate),
        ("separate", separated, view.control.separate),
    ):
        body += _pair(name, times, now, inner, look, short)
    changes = _changes(colocated, separated, inner, look)
    if room - len(body) > len(changes):
        body.append([])
    elif room - len(body) < len(changes):
        del changes[0]  # the arrows say as much
    body += changes
    if several and room > len(body) + 1:
        body += [[], [(" p50, p99, max: the worst worker's", "dim")]]
        body += _each(view, inner, room - len(body), look)
    right: Line = [("m switches", "dim")] if not frame.status.fixed and width >= 60 else []
    return box("prefills beside decodes", right, body[:room], width, height, look.glyphs, front=front)


def _each(view: ClusterView, inner: int, room: int, look: Look) -> list[Line]:
    """The p99 of each worker, as many as there is room for: alone and mixed, colocated and separate."""
    seen = [worker for worker in view.state.workers if _seen(worker.colocated) or _seen(worker.separated)]
    cell = (inner - _NAME - 2) // 4
    if room < 4 or cell < 12:
        return []
    names = ("colocated alone", "mixed", "separate alone", "mixed")
    if cell < 16:
        names = ("coloc alone", "mixed", "separ alone", "mixed")
    out: list[Line] = [[], [(f" {'p99 in ms':<{_NAME}}", "dim"), *((f"{name:>{cell}}", "dim") for name in names)]]
    for worker in seen[: room - 2]:
        parts = (worker.colocated.alone, worker.colocated.mixed, worker.separated.alone, worker.separated.mixed)
        line: Line = [(f" {clean(worker.name)[:_NAME]:<{_NAME}}", "text")]
        out.append(
            [*line, *((f"{_milliseconds(part.p99):>{cell}}", "value" if part.steps else "dim") for part in parts)]
        )
    if len(seen) > room - 2:
        out[-1] = [(f" {len(seen) - room + 3:,} more: i tells of all", "dim")]
    return out


def rows(times: Interference, inner: int, look: Look) -> list[Line]:
    """With heads, for one worker."""
    return [
        _heads("", inner, look),
        _row("  decodes alone", times.alone, inner, "text", look),
        _row("  with a prefill", times.mixed, inner, "text", look),
    ]


def _heads(name: str, inner: int, look: Look) -> Line:
    cell = _cell(inner)
    return [(f" {name:<{_name(inner) - 1}}"[: _name(inner)], "dim"), *((f"{head:>{cell}}", "dim") for head in _HEADS)]


def _pair(name: str, times: Interference, now: bool, inner: int, look: Look, short: bool) -> list[Line]:
    """Alone and mixed; the one that is in force now is marked."""
    mark, role = (look.glyphs.right, "selected") if now else (" ", "title")
    if short:
        return [
            _row(f"{mark}{name[:5]} alone", times.alone, inner, role, look),
            _row(f"{mark}{name[:5]} mixed", times.mixed, inner, role, look),
        ]
    head: Line = [(f"{mark}{name}", role), (", now" if now else "", "dim")]
    return [
        head,
        _row("  decodes alone", times.alone, inner, "dim", look),
        _row("  with a prefill", times.mixed, inner, "dim", look),
    ]


def _row(name: str, times: StepTimes, inner: int, role: str, look: Look) -> Line:
    cell = _cell(inner)
    steps = figures.count(times.steps) if times.steps < 10_000 or cell > 7 else figures.brief(times.steps)
    told = [steps, *(_milliseconds(value) for value in (times.p50, times.p99, times.max))]
    line: Line = [(f"{name:<{_name(inner)}}"[: _name(inner)], role)]
    return [*line, *((f"{text:>{cell}}", "value" if times.steps else "dim") for text in told)]


def _milliseconds(seconds: float | None) -> str:
    """In the unit of the column."""
    if seconds is None:
        return figures.NOT_MEASURED
    return f"{seconds * 1e3:.1f}" if seconds < 0.09995 else f"{seconds * 1e3:,.0f}"


def _changes(colocated: Interference, separated: Interference, inner: int, look: Look) -> list[Line]:
    """Each figure of both. The longest is of the newest steps alone, as all but numbers and means are."""
    arrow = f" {look.glyphs.arrow} "
    pairs = [
        ("", "colocated", "separate"),
        ("with a prefill", figures.percent(mixed_share(colocated)), figures.percent(mixed_share(separated))),
        ("mean step", figures.seconds(mean(colocated)), figures.seconds(mean(separated))),
        ("longest, newest", figures.seconds(longest(colocated)), figures.seconds(longest(separated))),
    ]
    return [
        [
            (f" {name:<{max(_NAME, _name(inner)) - 1}}", "dim"),
            (f"{before:>9}", "value" if name else "dim"),
            (arrow, "dim"),
            (after, "value" if name else "dim"),
        ]
        for name, before, after in pairs
    ]


def _name(inner: int) -> int:
    return max(12, min(_NAME + 4, inner - 4 * _cell(inner)))


def _cell(inner: int) -> int:
    return max(6, min(_CELL, (inner - 12) // 4))


def _seen(times: Interference) -> bool:
    return bool(times.alone.steps or times.mixed.steps)


def detail(frame: Frame, inner: int, look: Look) -> tuple[str, list[Line]]:
    """Each worker's own figures."""
    from textwrap import wrap

    view = frame.cluster
    lines: list[Line] = [[(f" {text}", "text")] for words in WORDS for text in wrap(words, inner - 2)]
    for worker in view.state.workers if view is not None else ():
        for name, times in (("colocated", worker.colocated), ("separate", worker.separated)):
            if _seen(times):
                share = f"{figures.percent(mixed_share(times))} with a prefill "
                lines += [[], spread([(f" {clean(worker.name)}, {name}", "title")], [(share, "dim")], inner)]
                lines += rows(times, inner, look)
    return "prefills beside decodes", lines


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    return frame.focus.but(inspecting=True) if key == "enter" else None
