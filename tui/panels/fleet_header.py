"""The two lines on top of a fleet: how many servers, how they stand, and what they do together."""

from __future__ import annotations

from collections import Counter

from tui import figures
from tui.look import Glyphs, Look
from tui.panels.fleet_columns import PHASES, ROLES
from tui.panels.line import Line, clean, cut, join, length, spread
from tui.sources import fleet as figures_of
from tui.view import Frame, Status

LONGEST = 10_000  # letters of a line before it is cut


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    fleet = frame.fleet
    if fleet is None:
        return []
    counts = Counter(server.link.phase for server in fleet.servers)
    fresh = sum(server.link.fresh for server in fleet.servers)
    left: Line = [(" paged-top", "title"), ("  ", "text"), (figures.plural(len(fleet.servers), "server"), "value")]
    states: list[Line] = [
        [
            (look.glyphs.live if phase in ("live", "slow") else look.glyphs.down, role),
            (f" {counts[phase]} {phase}", role),
        ]
        for phase in reversed(PHASES)
        if counts[phase]
        for role in [ROLES.get(phase, "bad")]
    ]
    first = _spread(left, join([*_time(frame.status, look.glyphs), *states], ("  ", "text"), LONGEST), width, look)
    rows = figures_of.rows(fleet, frame.focus.ledgers.window)
    totals = figures_of.totals(rows)
    models = {model for row in rows for model in row.models}
    parts: list[Line] = [
        _part("running", figures.count(totals.gauge("running"))),
        _part("waiting", figures.count(totals.gauge("waiting"))),
        _part(
            "generated", f"{figures.count(totals.sum(lambda part: figures_of.pace(part, 'generation_tokens')))} tok/s"
        ),
    ]
    if fresh < len(fleet.servers):
        parts.insert(0, [(f"of {fresh:,} of {len(fleet.servers):,}", "warn")])
    if models:
        parts.append(_part("models", figures.count(len(models))))
    if frame.status.target:
        parts.append([("from ", "dim"), (clean(frame.status.target), "text")])
    return [first, [(" ", "text"), *join(parts, ("   ", "text"), width - 2)]][:height]


def _time(status: Status, glyphs: Glyphs) -> list[Line]:
    """That this is a recording, or of then."""
    out: list[Line] = []
    if status.past is not None:
        out.append([(f"{glyphs.paused} paused", "key"), (f", {figures.seconds(status.past.behind)} ago", "key")])
    if status.playing is not None:
        out.append([(glyphs.live, "mode"), (" playback", "mode")])
    return out


def _part(name: str, value: str) -> Line:
    return [(f"{name} ", "dim"), (value, "value")]


def _spread(left: Line, right: Line, width: int, look: Look) -> Line:
    if length(left) + length(right) + 2 > width:
        left = [(" ", "text")]
        right = cut(right, width - 3, look.glyphs.more)
    return spread(left, [*right, (" ", "text")], width)
