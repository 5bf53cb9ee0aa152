"""The worker under the cursor: in a line, and with all that is told of it."""

from __future__ import annotations

from engine.cluster.protocol import Interference, TransferTotals, WorkerState
from tui import figures
from tui.cluster.view import ClusterView, cached_share, held_share, hit_rate, tells
from tui.focus import ClusterFocus
from tui.look import Look
from tui.panels.cluster import interference, steering
from tui.panels.cluster.columns import ROLES, ordered
from tui.panels.line import Line, clean, cut
from tui.view import Frame


def selected(view: ClusterView, focus: ClusterFocus) -> WorkerState | None:
    """The worker under the cursor."""
    if focus.worker is not None:
        return view.worker(focus.worker)
    rows = ordered(view, view.pools.get(steering.pool(view, focus), ()), focus)
    return rows[0] if rows else None


def line(view: ClusterView, worker: WorkerState, inner: int, look: Look) -> Line:
    """The worker under the cursor, in a line."""
    parts: list[tuple[str, str, str]] = [(clean(worker.name), "", "value")]
    if worker.phase != "ready":
        parts.append((f"{worker.phase}:" if worker.reason else worker.phase, clean(worker.reason), ROLES[worker.phase]))
    elif worker.reason:
        parts.append(("last death:", clean(worker.reason), "warn"))
    if tells(worker):
        parts += [
            ("sending", figures.count(worker.sending), "text"),
            ("receiving", figures.count(worker.receiving), "text"),
            ("load", f"{figures.count(worker.load)} tokens", "text"),
            ("hits", figures.percent(hit_rate(worker)), "text"),
            ("routed", figures.count(worker.routed), "text"),
        ]
    parts += [
        ("restarts", figures.count(worker.restarts), "warn" if worker.restarts else "text"),
        ("on", clean(worker.node), "text"),
    ]
    out: Line = [(" ", "text")]
    for name, value, role in parts:
        extra: Line = [(name, role if not value or role in ("bad", "warn") else "dim")]
        extra += [(f" {value}", role)] if value else []
        out += [*extra, ("  ", "text")]
    return cut(out, inner, look.glyphs.more)


def detail(frame: Frame, inner: int, look: Look) -> tuple[str, list[Line]]:
    """All about the worker under the cursor."""
    view = frame.cluster
    worker = selected(view, frame.focus.cluster) if view is not None else None
    if view is None or worker is None:
        return "worker", [[(" no worker is selected", "dim")]]
    engine, told = worker.engine, tells(worker)

    def count(value: float) -> str:
        return figures.count(value if told else None)

    about: list[tuple[str, str]] = [
        ("role", worker.role),
        ("state", worker.phase + (f": {clean(worker.reason)}" if worker.reason else "")),
        ("node", clean(worker.node)),
        ("path", clean(worker.path)),
        ("restarts", figures.count(worker.restarts)),
        (
            "engine",
            f"{clean(engine.model)}, {engine.dtype}, {clean(engine.device)}" if engine else figures.NOT_MEASURED,
        ),
        ("blocks", f"{engine.num_blocks:,} of {engine.block_size}" if engine else figures.NOT_MEASURED),
        ("step", count(worker.seq)),
        ("held", f"{count(worker.held_blocks)}, {figures.percent(held_share(worker))}"),
        ("cached", f"{count(worker.cached_blocks)}, {figures.percent(cached_share(worker))}"),
        ("running", count(worker.running)),
        ("waiting", count(worker.waiting)),
        ("sending", count(worker.sending)),
        ("receiving", count(worker.receiving)),
        ("prefilled", f"{count(worker.prefill_tokens)} tokens, {_pace(view.rate(worker, 'prefill_tokens'))}"),
        ("decoded", f"{count(worker.decode_tokens)} tokens, {_pace(view.rate(worker, 'decode_tokens'))}"),
        ("found", f"{count(worker.found_tokens)} of {count(worker.looked_up_tokens)} tokens looked up"),
        ("received", f"{count(worker.received_tokens)} prompt tokens from others"),
        ("load", f"{count(worker.load)} tokens outstanding"),
        ("routed", f"{figures.count(worker.routed)} requests"),
        *_moved("sent", worker.sent),
        *_moved("got", worker.received),
    ]
    lines: list[Line] = []
    for name, value in about:
        lines.append(cut([(f" {name:<10}", "dim"), (value, "text")], inner, look.glyphs.more))
    for name, times in (("colocated", worker.colocated), ("separated", worker.separated)):
        if times != Interference():
            lines += [[], [(f" {name}", "title")], *interference.rows(times, inner, look)]
    return clean(worker.name), lines


def _pace(rate: float | None) -> str:
    return f"{figures.count(rate)}/s"


def _moved(name: str, totals: TransferTotals) -> list[tuple[str, str]]:
    """Requests that came or went, and what did not."""
    words = f"{figures.plural(totals.requests, 'request')}, {totals.blocks:,} blocks, {figures.size(totals.nbytes)}"
    if totals.seconds:
        words += f" in {figures.seconds(totals.seconds)}"
    bad = [f"{count:,} {what}" for count, what in ((totals.failed, "failed"), (totals.expired, "expired")) if count]
    return [(name, words), *((("", ", ".join(bad)),) if bad else ())]
