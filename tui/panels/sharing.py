"""What prefix sharing saves: logical against physical blocks, and prompt tokens that were not computed again."""

from __future__ import annotations

from tui import figures
from tui.look import Look
from tui.panels.line import Line, box, spread
from tui.view import Frame, View


def draw(frame: Frame, width: int, height: int, look: Look, open_bottom: bool = False) -> list[Line]:
    body = _body(frame.view, width - 2, height - (1 if open_bottom else 2), look) if frame.view else []
    return box("sharing", [], body, width, height, look.glyphs, open_bottom=open_bottom)


def _body(view: View, inner: int, rows: int, look: Look) -> list[Line]:
    ledger, total = view.sharing, view.engine.num_blocks
    saved = figures.ratio(ledger.saved_blocks, ledger.logical_blocks)
    hits = figures.ratio(ledger.found_tokens, ledger.looked_up_tokens)
    room = inner - 2

    def row(name: str, value: str, role: str = "value") -> Line:
        return [(" ", "text"), *spread([(name, "dim")], [(value, role)], room)]

    if rows < 7:
        return [
            row("tables hold", figures.count(ledger.logical_blocks)),
            row("in memory", figures.count(ledger.physical_blocks)),
            row(f"saved {figures.percent(saved)}", figures.size(ledger.saved_bytes), "shared"),
            row(f"tokens {figures.percent(hits)}", figures.count(ledger.found_tokens), "shared"),
        ][:rows]
    glyphs = look.glyphs
    bar = max(0, inner - 36)
    most = max(ledger.logical_blocks, total, 1)
    body: list[Line] = [
        _bar("block tables hold", ledger.logical_blocks, most, bar, "dim", look),
        _bar("blocks in memory", ledger.physical_blocks, most, bar, "shared", look),
        _bar("blocks of the pool", total, most, bar, "faint", look),
        [],
        row("saved now", f"{figures.count(ledger.saved_blocks)} blocks   {figures.percent(saved)}", "shared"),
        row("", figures.size(ledger.saved_bytes), "shared"),
        row(
            "without sharing",
            f"{figures.percent(figures.ratio(ledger.logical_blocks, total))} of this pool",
        ),
        [],
        row("prompt tokens looked up", figures.count(ledger.looked_up_tokens)),
        row("found, not computed again", figures.count(ledger.found_tokens)),
        row(f"hit rate since the start {glyphs.dot} first admissions", figures.percent(hits), "shared"),
    ]
    resumed = figures.ratio(ledger.resumed_found_tokens, ledger.resumed_looked_up_tokens)
    body.append(row("hit rate when resumed after preemption", figures.percent(resumed)))
    if rows < len(body):
        body = [line for line in body if line]
    return body[:rows]


def _bar(name: str, blocks: int, most: int, width: int, role: str, look: Look) -> Line:
    length = round(width * blocks / most)
    if blocks and not length:
        length = min(1, width)
    glyphs = look.glyphs
    return [
        (f" {name:<20}", "dim"),
        (f"{blocks:>9,}  ", "value"),
        (glyphs.line * length, role),
    ]
