"""What sharing saves, by the prefix cache and by forks: logical against physical blocks, and tokens not computed."""

from __future__ import annotations

from tui import figures
from tui.look import Look
from tui.panels.line import Line, box, spread
from tui.view import Frame, View


def draw(frame: Frame, width: int, height: int, look: Look, open_bottom: bool = False) -> list[Line]:
    inner, rows = width - 2, height - (1 if open_bottom else 2)
    body: list[Line] = []
    if frame.view:
        body = _wide(frame.view, inner, rows, look) if inner >= 50 else _narrow(frame.view, inner, rows)
    return box("sharing", [], body[:rows], width, height, look.glyphs, open_bottom=open_bottom)


def _row(inner: int, name: str, value: str, role: str = "value") -> Line:
    return [(" ", "text"), *spread([(name, "dim")], [(value, role)], inner - 2)]


def _narrow(view: View, inner: int, rows: int) -> list[Line]:
    """A figure a line, what matters most first."""
    ledger = view.sharing
    saved = figures.ratio(ledger.saved_blocks, ledger.logical_blocks)
    hits = figures.ratio(ledger.found_tokens, ledger.looked_up_tokens)
    missed = figures.ratio(ledger.evicted_tokens, ledger.looked_up_tokens)
    body = [
        _row(inner, "tables hold", figures.count(ledger.logical_blocks)),
        _row(inner, "in memory", figures.count(ledger.physical_blocks)),
        _row(inner, f"saved {figures.percent(saved)}", figures.size(ledger.saved_bytes), "shared"),
        _row(inner, f"tokens {figures.percent(hits)}", figures.count(ledger.found_tokens), "shared"),
        _row(inner, "forked", figures.count(ledger.forked_tokens), "shared"),
        _row(inner, "copied", figures.plural(view.counters.copied_blocks, "block")),
        _row(inner, f"evicted {figures.percent(missed)}", figures.count(ledger.evicted_tokens)),
        _row(inner, "answers", figures.count(ledger.decoded_tokens)),
    ]
    # The tables' length follows from the next two lines: it gives way to forks, where there are some.
    return body[1:] if ledger.forked_tokens and rows == 4 else body


def _wide(view: View, inner: int, rows: int, look: Look) -> list[Line]:
    ledger, total = view.sharing, view.engine.num_blocks
    bar, most = max(0, inner - 36), max(ledger.logical_blocks, total, 1)

    def row(name: str, value: str, share: str = "", role: str = "value") -> Line:
        """With a share of something, in a column of its own."""
        return [*_row(inner - 8, name, value, role), (f" {share:>7} ", role)]

    def share(part: int, whole: int) -> str:
        return figures.percent(figures.ratio(part, whole))

    saved = f"{figures.count(ledger.saved_blocks)} blocks, {figures.size(ledger.saved_bytes)}"
    looked_up, resumed = ledger.looked_up_tokens, ledger.resumed_looked_up_tokens
    now = len(view.steps[-1].copies) if view.steps else 0
    body: list[Line] = [
        _bar("block tables hold", ledger.logical_blocks, most, bar, "dim", look),
        _bar("blocks in memory", ledger.physical_blocks, most, bar, "shared", look),
        _bar("blocks of the pool", total, most, bar, "faint", look),
        row("saved now", saved, share(ledger.saved_blocks, ledger.logical_blocks), "shared"),
        [],
        row("prompt tokens looked up since the start", figures.count(looked_up)),
        row(
            "found, not computed again",
            figures.count(ledger.found_tokens),
            share(ledger.found_tokens, looked_up),
            "shared",
        ),
        row("  in blocks of prompts", figures.count(ledger.found_tokens - ledger.decoded_tokens)),
        row("  in blocks with answers", figures.count(ledger.decoded_tokens)),
        row("  of both, copied out of a part of a block", figures.count(ledger.copied_tokens)),
        row(
            "missed: cached once, evicted since",
            figures.count(ledger.evicted_tokens),
            share(ledger.evicted_tokens, looked_up),
        ),
        row("shared with a parent by forks", figures.count(ledger.forked_tokens), role="shared"),
        row("blocks copied, this step and in all", f"{now:,}   {figures.count(view.counters.copied_blocks)}"),
        row(
            "found when resumed after preemption",
            figures.count(ledger.resumed_found_tokens),
            share(ledger.resumed_found_tokens, resumed),
        ),
        row("without sharing, of this pool", "", share(ledger.logical_blocks, total)),
    ]
    return body if rows >= len(body) else [line for line in body if line]


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
