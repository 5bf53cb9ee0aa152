"""The waste ledger, in slots: what is held, how much of it is filled, and what is lost inside and between."""

from __future__ import annotations

from tui import figures
from tui.look import Look
from tui.panels.line import Line, box, spread
from tui.view import Frame, View


def draw(frame: Frame, width: int, height: int, look: Look, top_joint: bool = False) -> list[Line]:
    view = frame.view
    body = _body(view, width - 2, height - 2, look) if view else []
    right: Line = [("slots", "dim")] if width >= 24 else []
    return box("waste", right, body, width, height, look.glyphs, top_joint=top_joint)


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
    return out
