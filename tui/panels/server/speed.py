"""What the server does a second and how long requests take, in short: what the ledgers have in full."""

from __future__ import annotations

from tui import figures
from tui.look import Look
from tui.panels.line import Line, cut, fit
from tui.panels.server import choice, latency, plots, words
from tui.panels.server.seen import Seen
from tui.view import Frame

_CHARTS = (plots.GENERATION, plots.PROMPT, plots.REQUESTS, plots.RUNNING, plots.WAITING)
_REASONS = 40  # cells, from which on a line says why a figure is not there
_BRIEFLY = (("ttft", "TTFT"), ("itl", "ITL"), ("e2el", "E2E"))
_TALL = 50  # cells from which on there is room for the table of latencies
_CELL = 9  # cells of a figure, where there is not


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    seen, inner, rows = Seen.of(frame), width - 2, height - 2
    if inner >= _TALL and rows >= len(latency.TERMS) + 4:
        table = latency.table(seen, inner, rows, look)
        left = rows - len(table) - 1
        high = left // 3
        if high >= plots.FRAME_ROWS + 2:
            body = plots.large(seen, (plots.GENERATION, plots.PROMPT), inner - 1, high * 2, look)
            body += plots.large(seen, (plots.RUNNING, plots.WAITING), inner - 1, left - high * 2, look)
        else:
            body = [plots.listed(seen, chart, False, inner, 18, look) for chart in plots.CHARTS][:left]
        body += [[]] * (left - len(body)) + [[], *table]
    else:
        body = [plots.listed(seen, chart, False, inner, 8, look) for chart in _CHARTS[:3]]
        body.append([(f" latency {'mean':>{_CELL}}{'p99':>{_CELL}}"[:inner], "dim")])
        body += [_brief(seen, term, name, inner, look) for term, name in _BRIEFLY]
        body += [plots.listed(seen, chart, False, inner, 8, look) for chart in _CHARTS[3:]]
    title = f"speed, {figures.seconds(seen.window)}"
    late = seen.tells("generation_tokens") and words.AT_END in words.note(
        seen.server.kind, plots.as_it_happens(seen, "generation_tokens")
    )
    right: Line = [("tokens at a request's end" if inner >= _TALL else "tok at end", "dim")] if late else []
    return choice.bordered("ledgers", title, frame, seen, body[:rows], width, height, look, right, rates=True)


def _brief(seen: Seen, term: str, name: str, inner: int, look: Look) -> Line:
    """One latency: its mean, and what all but a hundredth were at most."""
    left: Line = [(f" {name:<7} ", "text")]
    if not seen.tells(term):
        why = f" {seen.why(term)}" if inner >= _REASONS else f"{figures.NOT_MEASURED:>{_CELL}}"
        return cut([*left, (f"{figures.NOT_MEASURED:>{_CELL}}{why}", "dim")], inner - 1, look.glyphs.more)
    mean = latency.mean(seen, term)
    most = latency.quantile(seen, term, 99)
    return fit([*left, (f"{mean:>{_CELL}}{most:>{_CELL}}", "latency")], inner)
