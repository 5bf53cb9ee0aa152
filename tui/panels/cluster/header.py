"""The two lines on top of a cluster: how the connection and the workers stand, and what is switched how."""

from __future__ import annotations

from collections import Counter

from tui import figures
from tui.cluster.controls import reads
from tui.cluster.view import SIZES, ClusterView
from tui.look import Look
from tui.panels.cluster.columns import PHASES, ROLES, glyph
from tui.panels.line import Line, clean, cut, join, length, spread
from tui.view import Frame

LONGEST = 10_000  # letters of a line before it is cut
DETAIL = 60  # letters of what stands against it


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view = frame.cluster
    left: Line = [(" paged-top", "title"), ("  ", "text"), ("cluster", "value")]
    if view is not None:
        left += [(f" of {figures.plural(len(view.state.workers), 'worker')}", "value")]
        left += join(_about(view), (f" {look.glyphs.dot} ", "dim"), max(0, width - length(left) - 50))
    states = _states(view, look) if view is not None else []
    target: list[Line] = [[("from ", "dim"), (clean(frame.status.target), "text")]] if view is not None else []
    right = join([_link(frame, look), *states, *target], ("  ", "text"), width - length(left) - 3)
    right = right or _link(frame, look)
    if length(left) + length(right) + 2 > width:
        left = [(" ", "text")]
        right = cut(right, width - 3, look.glyphs.more)
    lines = [spread(left, [*right, (" ", "text")], width)]
    return [*lines, _controls(frame, view, width) if view is not None else _target(frame, width, look)][:height]


def _about(view: ClusterView) -> list[Line]:
    """What they run."""
    engines = [worker.engine for worker in view.state.workers if worker.engine is not None]
    models = list(dict.fromkeys(clean(engine.model) for engine in engines))
    kinds = list(dict.fromkeys((engine.dtype, engine.device) for engine in engines))
    out: list[Line] = [[("  ", "text"), (models[0] if len(models) == 1 else f"{len(models)} models", "text")]]
    if len(kinds) == 1:
        out += [[(clean(kinds[0][0]), "text")], [(clean(kinds[0][1]), "text")]]
    return out if engines else []


def _states(view: ClusterView, look: Look) -> list[Line]:
    counts = Counter(worker.phase for worker in view.state.workers)
    return [
        [(f"{glyph(phase, look.glyphs)} {counts[phase]:,} {phase}", ROLES[phase])] for phase in PHASES if counts[phase]
    ]


def _link(frame: Frame, look: Look) -> Line:
    status, link, glyphs = frame.status, frame.status.link, look.glyphs
    detail = cut([(clean(link.detail), "bad")], DETAIL, glyphs.more)
    out: Line
    match link.phase:
        case "live" if status.playing is not None:
            out = [(glyphs.live, "mode"), (" playback", "mode")]
        case "live":
            out = [(glyphs.live, "good"), (" live", "good")]
        case "reconnecting":
            out = [(glyphs.down, "bad"), (f" reconnecting since {figures.seconds(link.seconds)}", "bad")]
        case "down":
            out = [(glyphs.down, "bad"), (f" down for {figures.seconds(link.seconds)}: ", "bad"), *detail]
        case "locked" | "foreign":
            out = [(glyphs.down, "bad"), (" ", "bad"), *detail]
        case _:
            out = [(glyphs.down, "warn"), (f" connecting, {figures.seconds(link.seconds)}", "warn")]
    if status.past is not None:
        back = f", {figures.seconds(status.past.behind)} back"
        paused: Line = [(f"{glyphs.paused} paused", "key"), (back, "key")]
        out = paused if link.phase == "live" else [*paused, ("  ", "text"), *out]
    return out


def _target(frame: Frame, width: int, look: Look) -> Line:
    """Before anything was read: of whom, and what stands against it."""
    link = frame.status.link
    role = "bad" if link.phase in ("foreign", "locked") else "dim"
    parts: list[Line] = [[(clean(frame.status.target), "dim")], [(clean(link.detail), role)]]
    line: Line = [(" ", "text"), *join([part for part in parts if part[0][0]], ("  ", "text"), LONGEST)]
    return spread(cut(line, width - 1, look.glyphs.more), [], width)


def _controls(frame: Frame, view: ClusterView, width: int) -> Line:
    """Controls by importance: as many as fit."""
    control, keys = view.control, not frame.status.fixed
    named = width >= 100

    def part(key: str, name: str, value: str, role: str = "value") -> Line:
        return [*([(key, "key"), (" ", "text")] if keys and key else []), (f"{name} " if name else "", "dim"),
                (value, role)]  # fmt: skip

    mode = reads("separate", control.separate).upper()
    parts: list[Line] = [
        part("m", "prefill and decode" if named else "", mode, "mode" if control.separate else "mode-old")
    ]
    for role, workers in view.pools.items():
        ready, wanted = sum(worker.phase == "ready" for worker in workers), getattr(control, SIZES[role])
        value = f"{ready:,}" if ready == wanted else f"{ready:,}/{wanted:,}"
        parts.append(part("", role, value, "value" if ready == wanted else "warn"))
    parts += [
        part("o", "routing" if named else "", reads("routing", control.routing)),
        part("l", "local prefill" if named else "local", f"{control.local_prefill:,}"),
    ]
    if keys:
        parts.insert(-2, [("+ -", "key"), (" scale", "dim")])
    return [(" ", "text"), *join(parts, ("   " if named else "  ", "text"), width - 2)]
