"""How prefix blocks come and go: stored, removed, and stored again after they had been removed, a second."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from servers.kv_tree import Churn
from tui import figures
from tui.look import Look
from tui.panels.line import Line, join
from tui.panels.server import plots
from tui.panels.server.seen import Seen
from tui.sources.view import KvView

_OF: tuple[tuple[str, Callable[[Churn], int], str], ...] = (
    ("stored", lambda churn: churn.stored, "speed"),
    ("removed", lambda churn: churn.removed + churn.unknown_removals, "waste"),  # unseen ones are removed no less
    ("stored again", lambda churn: churn.again, "queue"),
)


def rates(views: Sequence[KvView], of: Callable[[Churn], int], edges: Sequence[float]) -> list[float | None]:
    """Blocks a second between neighbouring `edges`, over all endpoints; None where one had not been heard yet."""
    out: list[float | None] = []
    counts = [[_upto(view, of, edge) for edge in edges] for view in views]
    for at in range(len(edges) - 1):
        grown = [
            after - before
            for before, after in ((one[at], one[at + 1]) for one in counts)
            if before is not None and after is not None
        ]
        seconds = edges[at + 1] - edges[at]
        out.append(sum(grown) / seconds if len(grown) == len(views) and views and seconds > 0 else None)
    return out


def _upto(view: KvView, of: Callable[[Churn], int], time: float) -> int | None:
    """What had been counted by a time; None before the first count."""
    at = bisect_right(view.churned, time, key=lambda sample: sample[0])
    return of(view.churned[at - 1][1]) if at else None


def words(seen: Seen, inner: int) -> Line:
    """The rates over the window, or as much of it as was heard: then of how much."""
    views, now = seen.server.kv, seen.server.now
    begins = [view.churned[0][0] for view in views if view.churned]
    begin = max(now - seen.window, max(begins)) if len(begins) == len(views) and begins else now
    parts: list[Line] = []
    for name, of, role in _OF:
        (rate,) = rates(views, of, (begin, now)) if now - begin >= plots.LEAST else (None,)
        parts.append([(plots.a_second(rate), role), (f" {name}", "dim")])
    if plots.LEAST <= now - begin < seen.window - plots.LEAST:
        parts.append([(f"over {figures.seconds(now - begin)}", "dim")])
    return [(" ", "text"), *join(parts, ("  ", "text"), inner - 2)]


def chart(seen: Seen, inner: int, rows: int, look: Look) -> list[Line]:
    """Stored as bars, removed and stored again as points, with what they were over the window."""
    views, now, glyphs = seen.server.kv, seen.server.now, look.glyphs
    columns = plots.Columns.of(seen, max(1, inner - plots.SCALE_WIDTH))
    span = seen.window / columns.count
    edges = [now - span * (columns.count - at) for at in range(columns.count + 1)]
    series = [rates(views, of, edges) for _, of, _ in _OF]
    marks = (glyphs.bars[-1], glyphs.down, glyphs.live)
    head: Line = [(" blocks  ", "dim")]
    for mark, (name, _, role) in zip(marks, _OF, strict=True):
        head += [(f"{mark} ", role), (f"{name}  ", "dim")]
    roles = [role for _, _, role in _OF]
    ends = (seen.window, "now")
    return [
        head,
        *plots.plotted(columns, series, roles, None, plots.a_second, ends, max(1, rows - plots.FRAME_ROWS), look),
    ]
