"""The two lines on top: which engine, how the connection stands, and what is switched how."""

from __future__ import annotations

from tui import figures
from tui.look import Look
from tui.panels.line import Line, Span, clean, fit, join, length, spread
from tui.view import RATE_WINDOW, Frame, View

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
        engine = view.engine
        about: list[Line] = [
            [(clean(engine.model), "value")],
            [(engine.dtype, "text")],
            [(clean(engine.device), "text")],
            [(f"{engine.num_blocks:,} blocks of {engine.block_size}", "text")],
        ]
        room = width - length(left) - 3
        short = join([right, *facts[:2]], ("  ", "text"), room - len(engine.model)) or right
        left += join(about, dot, room - length(short)) or fit(about[0], max(0, room - length(short)))
        right = join([right, *facts], ("  ", "text"), width - length(left) - 3) or right
    if length(left) + length(right) + 2 > width:
        left = [(" ", "text")]
    lines = [spread(left, [*right, (" ", "text")], width)]
    if height > 1:
        lines.append(_controls(frame, view, width) if view else _target(frame, width))
    return lines


def _target(frame: Frame, width: int) -> Line:
    return spread([(" ", "text"), (clean(frame.status.target), "dim")], [], width)


def _link(frame: Frame, look: Look) -> Line:
    status, link, glyphs = frame.status, frame.status.link, look.glyphs
    since = figures.seconds(link.seconds)
    out: Line
    match link.phase:
        case "live" if link.silent >= SILENT:
            out = [(glyphs.live, "warn"), (f" no record for {figures.seconds(link.silent)}", "warn")]
        case "live":
            out = [(glyphs.live, "good"), (" live", "good")]
        case "starting":
            out = [(glyphs.down, "warn"), (f" starting an engine, {since}", "warn")]
        case "connecting":
            out = [(glyphs.down, "warn"), (f" connecting, {since}", "warn")]
        case "reconnecting":
            out = [(glyphs.down, "bad"), (f" reconnecting since {since}", "bad")]
        case "foreign":
            out = [(glyphs.down, "bad"), (" not an engine", "bad")]
        case "ended":
            out = [(glyphs.down, "bad"), (" the engine ended", "bad")]
    if link.lost:
        out += [(f" gap of {figures.plural(link.lost, 'record')}", "bad")]
    if status.paused:
        since = figures.plural(status.since_pause, "record")
        paused: Line = [(f"{glyphs.paused} paused", "key"), (f", {since} since", "key")]
        out = paused if link.phase == "live" else [*paused, ("  ", "text"), *out]
    return out


def _controls(frame: Frame, view: View, width: int) -> Line:
    control = view.control
    in_batch = sum(state.status != "waiting" for state in view.requests.values())
    old = control.batching == "static", control.allocation == "reserved"
    keys = not frame.status.readonly
    queue = view.queue
    waiting: Line = [("queue ", "dim"), (figures.count(queue.length), "value")]
    if queue.length:
        waiting += [(" oldest ", "dim"), (figures.seconds(queue.oldest_age), "text")]
    parts: list[Line] = [
        [*_key("m", keys), ("batching ", "dim"), (control.batching.upper(), "mode-old" if old[0] else "mode")],
        [*_key("a", keys), ("alloc ", "dim"), (control.allocation.upper(), "mode-old" if old[1] else "mode")],
        [*_key("c", keys), ("cache ", "dim"), ("on" if control.prefix_cache else "off", "value")],
        [("batch ", "dim"), (f"{in_batch:,}", "value"), (f"/{control.max_num_seqs:,}", "text")],
        waiting,
        [("budget ", "dim"), (f"{control.max_num_batched_tokens:,}", "value")],
        [("chunked prefill ", "dim"), ("on" if control.chunked_prefill else "off", "value")],
    ]
    gap_span: Span = ("   " if width >= 110 else "  ", "text")
    if width < 60:
        parts = [[*_key("m", keys), parts[0][-1]], [*_key("a", keys), parts[1][-1]], waiting[:2]]
        return [(" ", "text"), *join(parts, gap_span, width - 1)]
    return [(" ", "text"), *join(parts, gap_span, width - 2)]


def _key(key: str, shown: bool) -> Line:
    return [(key, "key"), (" ", "text")] if shown else []
