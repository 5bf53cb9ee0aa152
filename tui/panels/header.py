"""The two lines on top: which engine, how the connection stands, and what is switched how."""

from __future__ import annotations

from tui import controls, figures
from tui.look import Glyphs, Look
from tui.panels.line import Line, Span, clean, cut, fit, join, length, spread, text_of
from tui.view import RATE_WINDOW, Frame, View

DETAIL = 60  # letters of what stands against it
LONGEST = 10_000  # letters of a line before it is cut
SILENT = 5.0  # seconds without a record, while requests run, from which on that is told


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view = frame.view
    dot: Span = (f" {look.glyphs.dot} ", "dim")
    left: Line = [(" paged-top", "title"), ("  ", "text")]
    right: Line = [*_link(frame, look)]
    if view:
        recent = view.history.window(view.now - RATE_WINDOW, view.now)
        facts: list[Line] = [
            [("step ", "dim"), (figures.count(view.seq), "value")],
            [(figures.seconds(recent.step_mean), "value"), ("/step", "dim")],
            [("up ", "dim"), (figures.clock(view.uptime), "text")],
        ]
        if view.engine.restarts:
            facts.insert(2, [("restarts ", "dim"), (figures.count(view.engine.restarts), "bad")])
        if frame.status.target:  # who measured all this
            facts.append([("from ", "dim"), (clean(frame.status.target), "text")])
        engine = view.engine
        numbers = engine.dtype if engine.quantize == "none" else f"{engine.quantize} in {engine.dtype}"
        about: list[Line] = [
            [(clean(engine.model), "value")],
            [(numbers, "text")],
            [(clean(engine.device), "text")],
            [(f"{engine.num_blocks:,} blocks of {engine.block_size}", "text")],
        ]
        room = width - length(left) - 3
        short = join([right, *facts[:2]], ("  ", "text"), room - len(engine.model)) or right
        left += join(about, dot, room - length(short)) or fit(about[0], max(0, room - length(short)))
        right = join([right, *facts], ("  ", "text"), width - length(left) - 3) or right
    if length(left) + length(right) + 2 > width:
        left = [(" ", "text")]
        right = cut(right, width - 3, look.glyphs.more)  # of a long reason its beginning, not nothing
    lines = [spread(left, [*right, (" ", "text")], width)]
    if height > 1:
        lines.append(_controls(frame, view, width) if view else _target(frame, width, look))
    return lines


def _target(frame: Frame, width: int, look: Look) -> Line:
    """Before anything was read: of whom, and what stands against it."""
    link = frame.status.link
    role = "bad" if link.phase in ("foreign", "ended", "locked") else "dim"
    parts: list[Line] = [[(clean(frame.status.target), "dim")], [(clean(link.detail), role)]]
    line: Line = [(" ", "text"), *join([part for part in parts if part[0][0]], ("  ", "text"), LONGEST)]
    return spread(cut(line, width - 1, look.glyphs.more), [], width)


def _brief(told: str, glyphs: Glyphs) -> str:
    return text_of(cut([(clean(told), "text")], DETAIL, glyphs.more))


def _link(frame: Frame, look: Look) -> Line:
    status, link, glyphs = frame.status, frame.status.link, look.glyphs
    since = figures.seconds(link.seconds)
    detail = _brief(link.detail, glyphs)
    out: Line
    match link.phase:
        case "live" if link.silent >= SILENT:
            out = [(glyphs.live, "warn"), (f" no record for {figures.seconds(link.silent)}", "warn")]
        case "live" if link.unready:
            out = [(glyphs.live, "warn"), (f" {_brief(link.unready, glyphs)}", "warn")]
        case "live":
            out = [(glyphs.live, "good"), (" live", "good")]
        case "starting":
            out = [(glyphs.down, "warn"), (f" starting an engine, {since}", "warn")]
        case "connecting":
            out = [(glyphs.down, "warn"), (f" connecting, {since}", "warn")]
        case "reconnecting":
            out = [(glyphs.down, "bad"), (f" reconnecting since {since}", "bad")]
        case "down":
            out = [(glyphs.down, "bad"), (f" engine down for {since}: {detail}", "bad")]
        case "locked":
            out = [(glyphs.down, "bad"), (f" {detail}", "bad")]
        case "foreign":
            out = [(glyphs.down, "bad"), (" not an engine", "bad")]
        case "cluster":
            out = [(glyphs.down, "warn"), (" engines of a cluster", "warn")]
        case "ended":
            out = [(glyphs.down, "bad"), (" the engine ended", "bad")]
    if link.found:
        out += [(f" not believed: {_brief(link.found, glyphs)}", "bad")]
    if link.lost:
        out += [(f" gap of {figures.plural(link.lost, 'record')}", "bad")]
    if status.playing and link.phase == "live":
        out = [(glyphs.live, "mode"), (" playback", "mode")]
    if status.past:
        since = figures.plural(status.past.last - status.past.seq, "record")
        paused: Line = [(f"{glyphs.paused} paused", "key"), (f", {since} since", "key")]
        out = paused if link.phase == "live" else [*paused, ("  ", "text"), *out]
    return out


def _controls(frame: Frame, view: View, width: int) -> Line:
    """Controls by importance: as many as fit. Narrow screens leave out the names of what tells itself."""
    control, queue = view.control, view.queue
    in_batch = sum(state.status != "waiting" for state in view.requests.values())
    keys = not frame.status.fixed
    named = width >= 110

    def part(field: str, value: str, role: str = "value", name: bool = True) -> Line:
        keyed = controls.BY_FIELD[field] if field in controls.BY_FIELD else controls.NUMBERS[field]
        key: Line = [(keyed.key, "key"), (" ", "text")] if keys else []
        return [*key, *([(f"{keyed.short} ", "dim")] if name else []), (value, role)]

    def mode(field: str, old: str) -> Line:
        value = getattr(control, field)
        return part(field, value.upper(), "mode-old" if value == old else "mode", named)

    waiting: Line = [("queue ", "dim"), (figures.count(queue.length), "value")]
    modes = [mode("batching", "static"), mode("allocation", "reserved")]
    if width < 60:
        return [(" ", "text"), *join([*modes, waiting], ("  ", "text"), width - 1)]
    if queue.length and named:
        waiting += [(" oldest ", "dim"), (figures.seconds(queue.oldest_age), "text")]
    fit: list[Line] = [part("reserved_fit", control.reserved_fit)] if control.allocation == "reserved" else []
    longest = f"{control.max_prefill_chunk:,}" if control.max_prefill_chunk else "on"
    parts: list[Line] = [
        *modes,
        part("prefix_cache", controls.word(control.prefix_cache)),
        [("batch ", "dim"), (f"{in_batch:,}", "value"), (f"/{control.max_num_seqs:,}", "text")],
        waiting,
        part("scheduling_policy", controls.word(control.scheduling_policy), name=named),
        part("preempt", control.preempt),
        *fit,
        part("max_num_batched_tokens", f"{control.max_num_batched_tokens:,}"),
        part("chunked_prefill", longest if control.chunked_prefill else "off"),
    ]
    return [(" ", "text"), *join(parts, ("   " if named else "  ", "text"), width - 2)]
