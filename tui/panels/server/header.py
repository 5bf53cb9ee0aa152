"""The two lines on top: which server, how it stands, and of which of its engines the figures are."""

from __future__ import annotations

from tui import figures
from tui.look import Look
from tui.panels.line import Line, Span, clean, cut, join, length, spread
from tui.panels.server import choice, words
from tui.panels.server.seen import Seen, server_of
from tui.view import Frame

JUST_NOW = 60.0  # seconds for which a restart is told at the top


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    server, seen = server_of(frame), Seen.of(frame)
    dot: Span = (f" {look.glyphs.dot} ", "dim")
    left: Line = [(" paged-top", "title"), ("  ", "text")]
    version = clean(server.version or server.facts.get("version", ""))
    models = list(dict.fromkeys(engine.model for engine in server.engines if engine.model))
    about: list[Line] = [[(f"{seen.title} {version}".strip(), "value")]]
    if models:
        named = clean(models[0]) + (f" and {len(models) - 1:,} more" if len(models) > 1 else "")
        about.append([(named, "text")])
    if server.name and server.name != server.url:
        about.append([(clean(server.name), "text")])
    right = _link(frame, look)
    if length(left) + length(about[0]) + length(right) + 3 > width:
        left = [(" ", "text")]
    room = width - length(left) - length(right) - 3
    shown = join(about, dot, max(0, room))
    right = cut(right, max(0, width - length(left) - length(shown) - 2), look.glyphs.more)
    lines = [spread([*left, *shown], [*right, (" ", "text")], width)]
    if height > 1:
        lines.append(_second(frame, seen, width, look))
    return lines


def _link(frame: Frame, look: Look) -> Line:
    """How it stands; of when the newest look is, where that is not now."""
    server, status, glyphs = server_of(frame), frame.status, look.glyphs
    link = server.link
    age = f", last read {figures.seconds(link.age)} ago" if link.age is not None else ", never read"
    out: Line
    match link.phase:
        case "live":
            out = [(glyphs.live, "good"), (" live", "good")]
        case "slow":
            out = [(glyphs.live, "warn"), (f" slow{age}", "warn")]
        case "finding":
            out = [(glyphs.down, "warn"), (" finding out which server it is", "warn")]
        case "failing":
            out = [(glyphs.down, "bad"), (f" no answer{age}", "bad")]
        case "locked":
            out = [(glyphs.down, "bad"), (" it wants a key", "bad")]
        case "foreign":
            out = [(glyphs.down, "bad"), (" not a server known here", "bad")]
    if status.playing and link.fresh:
        out = [(glyphs.live, "mode"), (" playback", "mode")]
    if status.past:
        paused: Line = [(f"{glyphs.paused} paused", "key"), (f", {figures.seconds(status.past.behind)} ago", "key")]
        out = paused if link.phase == "live" else [*paused, ("  ", "text"), *out]
    return out


def _second(frame: Frame, seen: Seen, width: int, look: Look) -> Line:
    server = seen.server
    parts: list[Line] = []
    if not server.link.fresh and server.link.detail:
        parts.append([(clean(server.link.detail), "bad" if server.link.phase != "finding" else "dim")])
    if server.restarts:
        since = server.now - server.restarts[-1]
        if since < JUST_NOW:
            parts.append([(f"{look.glyphs.switch} started again {figures.seconds(since)} ago", "switch")])
        else:
            parts.append([("restarts seen ", "dim"), (figures.count(len(server.restarts)), "bad")])
    if seen.several:
        parts.append([("v", "key"), (" figures of ", "dim"), (choice.whose(seen), "mode")])
    if seen.reading is not None:
        parts.append([(f"rates {seen.over}" if seen.measures is not None else words.ONE_LOOK, "dim")])
        parts.append([("running ", "dim"), seen.count("running")])
        parts.append([("waiting ", "dim"), seen.count("waiting")])
    if server.kv:
        heard = sum(view.heard for view in server.kv)
        away = sum(view.phase != "live" for view in server.kv)
        state: Span = (f", {away} of {figures.plural(len(server.kv), 'endpoint')} not connected", "bad")
        parts.append([("KV events ", "dim"), (figures.count(heard), "value"), *([state] if away else [])])
    if server.link.fresh and server.link.detail:
        parts.append([(clean(server.link.detail), "dim")])
    parts.append([(clean(server.url), "dim")])
    line = join(parts, ("   " if width >= 110 else "  ", "text"), width - 2)
    if not line and parts:
        line = cut(parts[0], width - 2, look.glyphs.more)
    return spread([(" ", "text"), *line], [], width)
