"""What is handed over between workers: requests on their way, then those that came, or did not, the newest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from engine.cluster.protocol import TransferDone, TransferPhase, TransferState
from tui import figures
from tui.cluster.view import ClusterView
from tui.commands import Key, Reaction
from tui.look import Look
from tui.panels.cluster import steering
from tui.panels.line import Line, box, clean, cut, fit, join, short_id
from tui.view import Frame

KEYS: tuple[Key, ...] = (Key("up down", "scroll"), Key("home end", "the first, the last"))
_PHASES: dict[TransferPhase, str] = {  # roles of each
    "offered": "queue",
    "waiting": "warn",
    "moving": "speed",
    "overdue": "bad",
}
_SIGNS: dict[TransferPhase, str] = {"offered": "O", "waiting": "W", "moving": "M", "overdue": "!"}  # where it is narrow
ROOMY = 54  # cells from which on figures have columns
WHEEL_ROWS = 3
_NAME, _WAY = 9, 28  # cells of a worker's name, and at least of a request's with those of both workers
_LONGEST_WAY = 34
_WIDTHS = (7, 8, 8, 8, 6)  # of the figures behind them
LEAST_BYTES = 1 << 20  # from which on bytes a second are a speed: what moves less takes the time of being told of it
answer = steering.answer


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view, front = frame.cluster, frame.focus.panel == "transfers"
    if view is None:
        return box("handed over", [], [], width, height, look.glyphs, front=front)
    inner, room = width - 2, height - 2
    lines = _lines(view, inner, look)
    top = _top(frame, len(lines), room)
    bottom = join(_totals(view), ("", "text"), inner - 2)
    hidden = len(lines) - top - room
    more: Line = [(f"{hidden:,} more", "dim")] if hidden > 0 else []
    body = lines[top : top + room]
    title = _title(view, width)
    return box(title, more, body, width, height, look.glyphs, bottom=bottom, front=front)


def _top(frame: Frame, lines: int, room: int) -> int:
    return max(0, min(frame.focus.cluster.transfers, lines - room))


def _title(view: ClusterView, width: int) -> str:
    """How many are in flight, and how much that is."""
    flying = view.state.transfers
    if not flying:
        return "handed over, none in flight"
    nbytes = sum(one.nbytes for one in flying)
    told = _phases(flying) if width >= ROOMY else f"{len(flying):,} in flight"
    return f"handed over, {told}" + (f", {figures.size(nbytes)}" if nbytes else "")


def _phases(flying: Sequence[TransferState]) -> str:
    """How many are at what."""
    counts = Counter(one.phase for one in flying)
    return ", ".join(f"{counts[phase]:,} {phase}" for phase in _PHASES if counts[phase])


def _totals(view: ClusterView) -> list[Line]:
    """All that came to the workers that there are: what one did that is gone, is gone with it."""
    came = [worker.received for worker in view.state.workers]
    sent = [worker.sent for worker in view.state.workers]
    requests, nbytes = sum(one.requests for one in came), sum(one.nbytes for one in came)
    failed, expired = sum(one.failed for one in (*came, *sent)), sum(one.expired for one in (*came, *sent))
    parts: list[Line] = [[(f" {requests:,} came to these workers, {figures.size(nbytes)} ", "dim")]]
    if failed:
        parts.append([(f" {failed:,} failed ", "bad")])
    if expired:
        parts.append([(f" {expired:,} expired ", "warn")])
    return parts


def _lines(view: ClusterView, inner: int, look: Look) -> list[Line]:
    flying, done = view.state.transfers, view.state.recent
    if not flying and not done:
        words = "nothing was handed over yet" if view.control.separate else "colocated: nothing is handed over"
        return [[(f" {words}", "dim")]]
    roomy = inner >= ROOMY
    out: list[Line] = []
    if flying:
        words = "in flight" if roomy else _phases(flying)
        out.append(_heads(words, ("blocks", "bytes", "age", "phase", ""), inner))
        out += [_flying(view, one, inner, look) for one in flying]
    if done:
        words = "ended, the newest first" if roomy else "ended"
        out.append(_heads(words, ("blocks", "bytes", "waited", "moved", "MB/s"), inner))
        out += [_done(one, inner, look) for one in reversed(done)]
    return out


def _heads(words: str, heads: tuple[str, ...], inner: int) -> Line:
    if inner < ROOMY:
        return [(f" {words}", "title")]
    way = _cells_of_way(inner)
    return [(f" {words:<{way - 1}}"[:way], "title"), *_cells(heads, "dim", inner)]


def _cells_of_way(inner: int) -> int:
    """What the figures leave, for an id that can be told from others."""
    return min(_LONGEST_WAY, max(_WAY, inner - sum(_WIDTHS) - 1))


def _cells(texts: tuple[str, ...], role: str, inner: int) -> Line:
    """Figures under their heads, as many as there is room for."""
    out: Line = []
    left = inner - _cells_of_way(inner)
    for text, width in zip(texts, _WIDTHS, strict=True):
        if width > left:
            break
        left -= width
        out.append((f"{text:>{width}}", role))
    return out


def _way(request: str, source: str, target: str, inner: int, look: Look) -> str:
    """Which request, from where to where: names differ at their ends."""
    target = clean(target) if target else look.glyphs.dash
    names = [
        name if len(name) <= _NAME else name[:3] + look.glyphs.more[0] + name[len(name) - _NAME + 4 :]
        for name in (clean(source), target)
    ]
    cells = _cells_of_way(inner) - 2 * _NAME - 4
    return f" {short_id(request, cells):<{cells}} {names[0]:>{_NAME}}{look.glyphs.arrow}{names[1]:<{_NAME}}"


def _age(view: ClusterView, one: TransferState) -> str:
    """Since the offer, also while nothing new is told of it."""
    return figures.seconds(one.age + view.now - view.state.time)


def _flying(view: ClusterView, one: TransferState, inner: int, look: Look) -> Line:
    line: Line = [(_way(one.request, one.source, one.target, inner, look), "text")]
    age, role = _age(view, one), _PHASES[one.phase]
    if inner < ROOMY:
        return fit([*line, (_SIGNS[one.phase], role), (f"{age:>{max(0, inner - _WAY - 2)}}", "text")], inner)
    line += _cells((f"{one.blocks:,}", _size(one.nbytes), age, "", ""), "text", inner)[:3]
    return fit([*line, (f" {one.phase}", role)], inner)


def _done(one: TransferDone, inner: int, look: Look) -> Line:
    line: Line = [(_way(one.request, one.source, one.target, inner, look), "dim")]
    if one.error:
        words = f" failed: {clean(one.error)}" if inner >= ROOMY else " failed"
        return cut([*line, (words, "bad")], inner, look.glyphs.more)
    if inner < ROOMY:
        return fit([*line, (f"{_size(one.nbytes):>{max(0, inner - _WAY - 1)}}", "text")], inner)
    speed = f"{one.nbytes / one.moved / 1e6:,.0f}" if _has_speed(one) else figures.NOT_MEASURED
    waited, moved = figures.seconds(one.waited), figures.seconds(one.moved)
    return fit([*line, *_cells((f"{one.blocks:,}", _size(one.nbytes), waited, moved, speed), "text", inner)], inner)


def _has_speed(one: TransferDone) -> bool:
    return one.nbytes >= LEAST_BYTES and one.moved > 0


def _size(nbytes: int) -> str:
    return figures.size(nbytes) if nbytes else figures.NOT_MEASURED


def detail(frame: Frame, inner: int, look: Look) -> tuple[str, list[Line]]:
    """Each of them in words."""
    view = frame.cluster
    if view is None or not (view.state.transfers or view.state.recent):
        return "handed over", [[(" nothing was handed over yet", "dim")]]
    lines: list[Line] = []
    for one in view.state.transfers:
        target = clean(one.target) or "no worker chosen yet"
        lines.append([(f" {clean(one.request)}", "title"), (f"  {one.phase}", _PHASES[one.phase])])
        words = f"{clean(one.source)} to {target}, {one.blocks:,} blocks, {figures.size(one.nbytes)}"
        lines.append([(f"   {words}, offered {_age(view, one)} ago", "text")])
    for done in reversed(view.state.recent):
        lines.append([(f" {clean(done.request)}", "title"), ("  failed" if done.error else "  done", "dim")])
        words = f"{clean(done.source)} to {clean(done.target) or 'nobody'}, {done.blocks:,} blocks"
        words += f", {figures.size(done.nbytes)}, waited {figures.seconds(done.waited)}"
        lines.append([(f"   {words}, moved {figures.seconds(done.moved)}", "text")])
        if done.error:
            lines.append(cut([("   ", "text"), (clean(done.error), "bad")], inner, look.glyphs.more))
    return "handed over", [cut(line, inner, look.glyphs.more) for line in lines]


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    if frame.cluster is None:
        return None
    lines, room = len(_lines(frame.cluster, width - 2, Look())), height - 2
    by = {"up": -1, "down": 1, "pageup": -room, "pagedown": room, "home": -lines, "end": lines}.get(key)
    return None if by is None else _scrolled(frame, lines, room, by)


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    if frame.cluster is None:
        return None
    lines = len(_lines(frame.cluster, width - 2, Look()))
    return _scrolled(frame, lines, height - 2, -WHEEL_ROWS if up else WHEEL_ROWS)


def _scrolled(frame: Frame, lines: int, room: int, by: int) -> Reaction:
    top = max(0, min(_top(frame, lines, room) + by, lines - room))
    return frame.focus.but(cluster=replace(frame.focus.cluster, transfers=top))
