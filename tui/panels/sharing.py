"""What sharing saves, by the prefix cache and by forks: logical against physical blocks, the tree of prefixes.

While others are in front it is the ledger over the top of the tree; in front it is the tree, to be walked.
"""

from __future__ import annotations

from dataclasses import dataclass

from tui import figures
from tui.commands import Key, Reaction
from tui.look import Look
from tui.panels import sharing_tree
from tui.panels.line import Line, box, join, spread
from tui.prefix_tree import PrefixTree, tree_of
from tui.view import Frame, View

KEYS = (
    Key("up down", "select a node of the prefix tree"),
    Key("+ -", "open and close it"),
    Key("enter", "who shares it, its blocks and its text"),
    Key("pgup pgdn", "a screen up or down"),
    Key("home end", "the first or the last node"),
)
TREE_ROWS = 3  # of the tree at least, where the ledger gives way to it
LEDGER_ROWS = 14  # of the ledger at most


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows of the panel in front, from the top: of totals, of column names, of the tree, of what is under it."""

    totals: int
    names: int
    tree: int
    below: int

    @classmethod
    def of(cls, view: View, tree: PrefixTree, width: int, rows: int) -> Layout:
        copies = sum(len(step.copies) for step in view.steps) if rows >= 14 else 0
        below = (min(copies, sharing_tree.COPIES_LISTED) + 1 if rows >= 14 else 0) + bool(tree.unknown and rows >= 8)
        totals = 6 if rows >= 20 and width >= 52 else 1 if rows >= 6 else 0
        names = int(rows >= 5)
        return cls(totals, names, max(1, rows - totals - names - below), below)


def draw(frame: Frame, width: int, height: int, look: Look, open_bottom: bool = False) -> list[Line]:
    view, front = frame.view, frame.focus.panel == "sharing"
    inner, rows = width - 2, height - (1 if open_bottom else 2)
    body: list[Line] = []
    right: Line = []
    bottom: Line = []
    if view:
        tree = tree_of(view) if front or inner >= 50 else None
        if front and tree is not None:
            body = _walked(frame, view, tree, inner, rows, look)
            right = [(f"{figures.plural(len(tree), 'node')}", "dim")]
        else:
            body = _wide(frame, view, tree, inner, rows, look) if tree is not None else _narrow(view, inner, rows)
        if tree is not None and tree.seq != view.seq:
            bottom = [(f" tree as of step {tree.seq:,} ", "dim")]
    return box(
        "sharing", right, body[:rows], width, height, look.glyphs, bottom=bottom, open_bottom=open_bottom, front=front
    )


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    view = frame.view
    if view is None:
        return None
    return sharing_tree.press(frame, view, key, Layout.of(view, tree_of(view), width - 2, height - 2).tree)


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A click selects the node of its row; on the mark before it, it opens or closes too."""
    view = frame.view
    if view is None:
        return None
    tree = tree_of(view)
    layout = Layout.of(view, tree, width - 2, height - 2)
    rows = sharing_tree.rows_of(tree, frame.focus.sharing, layout.tree)
    at = rows.top + y - 1 - layout.totals - layout.names
    if not rows.top <= at < min(len(rows.nodes), rows.top + layout.tree):
        return None
    return sharing_tree.select(frame, tree, rows, at)


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    view = frame.view
    if view is None:
        return None
    return sharing_tree.scroll(frame, view, up, Layout.of(view, tree_of(view), width - 2, height - 2).tree)


def detail(frame: Frame, width: int, look: Look) -> tuple[str, list[Line]]:
    if frame.view is None:
        return "prefix", []
    return sharing_tree.detail(frame, frame.view, width, look)


def _walked(frame: Frame, view: View, tree: PrefixTree, inner: int, rows: int, look: Look) -> list[Line]:
    """The panel in front: totals, the tree, and the copies."""
    layout = Layout.of(view, tree, inner, rows)
    body: list[Line] = []
    if layout.totals == 1:
        body = [_summary(view, inner)]
    elif layout.totals:
        body = [*_bars(view, inner, look), *_facts(view, inner)[:1], _found(view, inner), []]
    if layout.names:
        body.append(sharing_tree.header(inner))
    nodes = sharing_tree.lines(frame, view, tree, inner, layout.tree, look)
    if not nodes:
        nodes = [[(" nothing is shared or was found", "dim")]]
    body += nodes + [[]] * (layout.tree - len(nodes))
    if layout.below:
        unknown = sharing_tree.not_known(tree)
        body += unknown
        if layout.below > len(unknown):
            body += sharing_tree.copied(view, inner, layout.below - len(unknown), look)
    return body


def _summary(view: View, inner: int) -> Line:
    ledger = view.sharing
    share = figures.percent(figures.ratio(ledger.saved_blocks, ledger.logical_blocks))
    return join(
        [
            [(" saved ", "dim"), (f"{share}", "shared")],
            [(figures.size(ledger.saved_bytes), "shared")],
            [(f"{ledger.physical_blocks:,} blocks for {ledger.logical_blocks:,}", "text")],
        ],
        ("  ", "text"),
        inner,
    )


def _found(view: View, inner: int) -> Line:
    """Tokens that were found, against those looked up."""
    ledger = view.sharing
    return join(
        [
            [(" found ", "dim"), (f"{ledger.found_tokens:,} of {ledger.looked_up_tokens:,} prompt tokens", "shared")],
            [(figures.percent(figures.ratio(ledger.found_tokens, ledger.looked_up_tokens)), "shared")],
            [("forked ", "dim"), (f"{ledger.forked_tokens:,}", "shared")],
            [("evicted ", "dim"), (f"{ledger.evicted_tokens:,}", "value")],
        ],
        ("  ", "text"),
        inner,
    )


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


def _wide(frame: Frame, view: View, tree: PrefixTree, inner: int, rows: int, look: Look) -> list[Line]:
    """The ledger, the top of the tree among it: of the facts those that others tell too give way first."""
    facts = _facts(view, inner)
    nodes: list[Line] = []
    if rows >= 9 and len(tree):
        count = max(TREE_ROWS, rows - LEDGER_ROWS)
        nodes = sharing_tree.lines(frame, view, tree, inner, count, look)
    head = [*_bars(view, inner, look), facts[0]]
    return [*head, *nodes, *_most(facts[1:], rows - len(head) - len(nodes))]


def _most(facts: list[Line], count: int) -> list[Line]:
    """As many as there is room for, in their order."""
    least_first = (9, 4, 2, 3, 8, 5, 6, 7, 1, 0)
    dropped = set(least_first[: max(0, len(facts) - count)])
    return [fact for at, fact in enumerate(facts) if at not in dropped]


def _facts(view: View, inner: int) -> list[Line]:
    """What the ledger has beside its bars, each with its share of what it is a part of."""
    ledger, total = view.sharing, view.engine.num_blocks

    def row(name: str, value: str, share: str = "", role: str = "value") -> Line:
        """With a share of something, in a column of its own."""
        return [*_row(inner - 8, name, value, role), (f" {share:>7} ", role)]

    def share(part: int, whole: int) -> str:
        return figures.percent(figures.ratio(part, whole))

    saved = f"{figures.count(ledger.saved_blocks)} blocks, {figures.size(ledger.saved_bytes)}"
    looked_up, resumed = ledger.looked_up_tokens, ledger.resumed_looked_up_tokens
    now = len(view.steps[-1].copies) if view.steps else 0
    return [
        row("saved now", saved, share(ledger.saved_blocks, ledger.logical_blocks), "shared"),
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


def _bars(view: View, inner: int, look: Look) -> list[Line]:
    """Blocks without sharing, with it, and that there are, to one scale."""
    ledger, total = view.sharing, view.engine.num_blocks
    bar, most = max(0, inner - 36), max(ledger.logical_blocks, total, 1)
    return [
        _bar("block tables hold", ledger.logical_blocks, most, bar, "dim", look),
        _bar("blocks in memory", ledger.physical_blocks, most, bar, "shared", look),
        _bar("blocks of the pool", total, most, bar, "faint", look),
    ]


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
