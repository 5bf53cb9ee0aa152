"""The waste ledger, in slots: what is held, how much of it is filled, and what is lost inside and between.

Where there is room, what preemption cost too: work done again, or blocks moved to host memory and back.
"""

from __future__ import annotations

from engine.protocol import Preempted
from tui import figures
from tui.look import Look
from tui.panels.line import Line, box, join, length, short_id, spread
from tui.view import Frame, View

PREEMPTION_ROWS = 4
PREEMPTION_WINDOW = 60.0  # seconds, of which those that were seen are told


def draw(frame: Frame, width: int, height: int, look: Look, top_joint: bool = False) -> list[Line]:
    view = frame.view
    body = _body(view, width - 2, height - 2, look) if view else []
    right: Line = [("slots", "dim")] if width >= 24 else []
    front = frame.focus.panel == "ledgers"
    return box("waste", right, body, width, height, look.glyphs, top_joint=top_joint, front=front)


def _body(view: View, inner: int, rows: int, look: Look) -> list[Line]:
    ledger = view.waste
    slots = view.engine.num_blocks * view.engine.block_size
    shares = {
        "held": figures.ratio(ledger.held, slots),
        "filled": figures.ratio(ledger.filled, ledger.held),
        "internal": figures.ratio(ledger.internal, ledger.held),
        "external": figures.ratio(ledger.external, slots),
    }
    values = {
        "held": ledger.held,
        "filled": ledger.filled,
        "internal": ledger.internal,
        "external": ledger.external,
    }
    wide = inner >= 36
    of = {"held": " of pool", "filled": " of held", "internal": " of held", "external": " of pool"}
    names = list(values) if rows >= 4 else ["internal", "external"][:rows]
    out: list[Line] = []
    bar = inner - 48
    for name in names:
        role = "waste" if name in ("internal", "external") else "value"
        share = shares[name]
        figure = f"{figures.percent(share):>6}" + (of[name] if wide else "")
        if inner < 28:
            out.append([(f"{name:<8}", "dim"), (f" {values[name]:>{inner - 15},} {figures.percent(share):>5}", role)])
            continue
        line = [(" ", "text"), (f"{name:<9}", "dim"), (f"{values[name]:>{10 if wide else 6},}", role)]
        if bar > 8:
            filled = round(bar * (share or 0))
            line += [("  ", "text"), (look.glyphs.line * filled, role), (look.glyphs.rest * (bar - filled), "faint")]
        out.append(spread(line, [(figure, role), (" ", "text")], inner))
    left = rows - len(out)
    if inner < 36:
        return out + _preemption_briefly(view, inner)[:left]
    return out + _preemption(view, inner)[:left] if left >= PREEMPTION_ROWS else out


def _preemption_briefly(view: View, inner: int) -> list[Line]:
    counters = view.counters
    facts = [("preempted", counters.preemptions), ("recomputed", counters.recomputed_tokens)]
    if view.engine.num_host_blocks:
        facts.append(("swapped", view.host_blocks))
    return [[(f"{name:<10}", "dim"), (f"{value:>{inner - 11},}", "value")] for name, value in facts]


def _preemption(view: View, inner: int) -> list[Line]:
    """How often since the start and lately, what it cost, how full the swap space is, and the last one's reason."""
    counters, engine = view.counters, view.engine
    recent = view.history.window(view.now - PREEMPTION_WINDOW, view.now)
    swaps = sum(preempted.by == "swap" for preempted in recent.preempted)
    recomputes = len(recent.preempted) - swaps
    computed = counters.prefill_tokens + counters.decode_tokens
    lines = [
        _fact(
            inner,
            "preempted",
            figures.count(counters.preemptions),
            f"last {figures.seconds(recent.observed)}: {swaps:,} by swap, {recomputes:,} by recompute",
            f"transfer {figures.seconds(recent.transfer_seconds)}",
        ),
        _fact(
            inner,
            "recomputed",
            figures.count(counters.recomputed_tokens),
            f"tokens, {figures.percent(figures.ratio(counters.recomputed_tokens, computed))} of all computed",
        ),
    ]
    if engine.num_host_blocks:
        lines.append(
            _fact(
                inner,
                "swapped",
                figures.count(view.host_blocks),
                f"of {engine.num_host_blocks:,} host blocks",
                f"so far {counters.swapped_out_blocks:,} out",
                f"{counters.swapped_in_blocks:,} back",
            )
        )
    if recent.preempted:
        lines.append(_last(recent.preempted[-1], inner))
    return lines


def _last(preempted: Preempted, inner: int) -> Line:
    """The last preemption, and what it was expected to cost against the other way."""
    costs = {"swap": preempted.swap_seconds, "recompute": preempted.recompute_seconds}
    taken = figures.seconds(costs.pop(preempted.by))
    (other, seconds), *_ = costs.items()
    what = figures.plural(preempted.swapped_blocks, "block") if preempted.by == "swap" else ""
    what = what or figures.plural(preempted.lost_tokens, "token")
    return _fact(
        inner,
        "last",
        short_id(preempted.request, 8),
        f"by {preempted.by}: {what}",
        f"{taken} expected",
        f"{other} {figures.seconds(seconds)}",
    )


def _fact(inner: int, name: str, value: str, *notes: str) -> Line:
    """A figure and as many of its notes as fit."""
    line: Line = [(f" {name:<10}", "dim"), (f"{value:>9}", "value"), ("  ", "text")]
    return [*line, *join([[(note, "dim")] for note in notes], (", ", "dim"), inner - length(line))]
