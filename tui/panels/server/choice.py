"""What every panel of a server has in common: keys that choose the seconds and the engine, and the border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tui import figures
from tui.commands import Key, Reaction, Say
from tui.focus import PanelName
from tui.look import Look
from tui.panels.ledgers import WINDOWS
from tui.panels.line import Line, Span, box, length
from tui.panels.server.seen import Seen, chosen, name_of, server_of
from tui.view import Frame

KEYS = (
    Key("< >", "figures over a shorter or a longer time"),
    Key("v V", "figures of the next engine behind this server, of the one before, or of all"),
)


def press(frame: Frame, key: str) -> Reaction:
    """The keys that mean the same in every panel."""
    focus, ledgers = frame.focus, frame.focus.ledgers
    if key in ("less_than_sign", "greater_than_sign"):
        longer = key == "greater_than_sign"
        others = [one for one in WINDOWS if (one > ledgers.window) == longer and one != ledgers.window]
        if not others:
            return Say(f"{figures.seconds(ledgers.window)} is the {'longest' if longer else 'shortest'} time")
        return focus.but(ledgers=replace(ledgers, window=min(others) if longer else max(others)))
    if key in ("v", "V", "upper_v"):
        engines = server_of(frame).engines
        if len(engines) < 2:
            return Say("this server tells of one engine only")
        choices = [None, *engines]
        at = (choices.index(chosen(frame)) + (1 if key == "v" else -1)) % len(choices)
        engine = choices[at]
        return focus.but(server=replace(focus.server, engine=engine))
    return None


def whose(seen: Seen) -> str:
    """Of which of several engines the figures are."""
    engines = seen.server.engines
    if seen.engine is not None:
        return name_of(seen.engine, engines)
    return f"all {len(engines):,} engines" if len(engines) > 1 else ""


def bordered(
    panel: PanelName,
    name: str,
    frame: Frame,
    seen: Seen,
    body: Sequence[Sequence[Span]],
    width: int,
    height: int,
    look: Look,
    right: Sequence[Span] = (),
    rates: bool = False,
    top_joint: bool = False,
    open_bottom: bool = False,
) -> list[Line]:
    """The panel's box. Its title says of when its figures are, if that is not now, and of which engine; its lower
    edge, with `rates`, how long these are over."""
    engine = whose(seen) if seen.engine is not None else ""
    brief = name.partition(",")[0]
    titles = [(name, seen.as_of, engine), (name, seen.old, engine), (name, seen.old), (brief, seen.old)]
    said = [", ".join(part for part in parts if part) for parts in titles]
    title = next((one for one in said if len(one) <= width - 6), said[-1])
    over = seen.over if len(seen.over) <= width - 6 else "needs two looks"
    note: Line = [(f" {over} ", "dim")] if rates and len(over) <= width - 6 else []
    return box(
        title,
        right,
        body,
        width,
        height,
        look.glyphs,
        bottom=note,
        top_joint=top_joint,
        open_bottom=open_bottom,
        front=frame.focus.panel == panel,
    )


def fact(name: str, value: str, inner: int, role: str = "value", note: str = "", wide: int = 24) -> Line:
    """A name, its figure, and a note as far as there is room."""
    name_width = min(wide, max(8, inner - len(value) - 3))
    line: Line = [(f" {name[:name_width]:<{name_width}} ", "dim"), (value, role)]
    room = inner - length(line) - 2
    return [*line, (f"  {note[:room]}", "dim")] if note and room >= 6 else line
