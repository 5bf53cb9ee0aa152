"""The prefix tree as rows that can be walked, opened and closed; what is copied on write; and one node in full."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tui import figures
from tui.block_columns import UNKNOWN
from tui.commands import Reaction
from tui.focus import SharingFocus
from tui.look import Look
from tui.panels.line import Line, Span, breaks, clean, fit, join, length, short_id, spread
from tui.panels.tree_rows import Rows
from tui.prefix_tree import Node, PrefixTree, holders, tree_of
from tui.view import Frame, View

COPIES_LISTED = 4
_TEXT_WIDTH = 72  # from which on texts are shown beside the figures
_BAR_WIDTH = 58
_INDENT = 16  # cells of a row that its depth takes at most


def rows_of(tree: PrefixTree, focus: SharingFocus, count: int) -> Rows:
    """What `count` rows show: from where the focus says, moved so far that the selected node is among them."""
    return Rows.of(tree.visible(focus.closed), tree.index_of(focus.node), focus.top, focus.follow, count)


def lines(frame: Frame, view: View, tree: PrefixTree, inner: int, count: int, look: Look) -> list[Line]:
    """The rows of the tree, `count` at most."""
    rows = rows_of(tree, frame.focus.sharing, count)
    most = int(tree.saved.max()) if len(tree) else 0
    out: list[Line] = []
    for at in range(rows.top, min(len(rows.nodes), rows.top + count)):
        line = _row(frame, tree, int(rows.nodes[at]), most, at == rows.selected, inner, look)
        out.append(line)
    return out


def header(inner: int) -> Line:
    """The names of the columns that `_row` has at this width."""
    right = _columns(inner, "blocks", "hits", "saved", "bytes") + " " * _bar_width(inner)
    return spread([("  requests" if inner >= 34 else "  req", "dim")], [(right, "dim")], inner)


def _bar_width(inner: int) -> int:
    """Cells of a row's bar, the one after it included."""
    return 0 if inner < _BAR_WIDTH else min(30, (inner - 40) // 3) + 1


def _columns(inner: int, blocks: str, hits: str, saved: str, bytes_saved: str) -> str:
    """Figures at the right of a row: what matters least gives way first."""
    if inner < 34:
        return f"{blocks:>6} {saved:>6}" if inner >= 26 else f"{saved:>6}"
    text = f"{blocks:>7} {hits:>7}" if inner >= 44 else f"{blocks:>7}"
    return f"{text} {saved:>7} {bytes_saved:>8} "


def _row(frame: Frame, tree: PrefixTree, index: int, most: int, selected: bool, inner: int, look: Look) -> Line:
    node, glyphs = tree.node(index), look.glyphs
    is_closed = node.last in frame.focus.sharing.closed
    fold = " " if not node.below else glyphs.right if is_closed else glyphs.down_open
    role = "cursor" if selected else "shared" if node.references > 1 else "cached" if not node.references else "value"
    name: Line = [
        (glyphs.live if selected else " ", role),
        (_branches(tree, index, look)[-min(_INDENT, inner // 4) :], "faint"),
        (f"{fold} ", "dim"),
        (f"{glyphs.hole}{node.references:,}" if node.references else "cached", role),
    ]
    if is_closed and node.below:
        name.append((f" +{node.below:,}", "dim"))
    right: Line = [
        (
            _columns(
                inner,
                f"{len(node.blocks):,}",
                figures.count(node.hits),
                figures.count(node.saved_blocks),
                figures.size(node.saved_bytes),
            ),
            role,
        )
    ]
    bar = _bar_width(inner) - 1
    if bar < 0:
        return spread(fit(name, max(1, inner - length(right) - 1)), right, inner)
    filled = round(bar * node.saved_blocks / most) if most else 0
    if node.saved_blocks and not filled:
        filled = 1
    right += [(glyphs.line * filled, "shared"), (glyphs.rest * (bar - filled), "faint"), (" ", "text")]
    text = first_text(frame, node) if inner >= _TEXT_WIDTH else ""
    room = inner - length(name) - length(right) - 3
    if text and room >= 6:
        name += [("  ", "text"), (text[:room], "dim")]
    return spread(fit(name, inner - length(right) - 1), right, inner)


def _branches(tree: PrefixTree, index: int, look: Look) -> str:
    """The lines that lead to a node from those above it."""
    glyphs = look.glyphs
    parts: list[str] = []
    at = index
    while tree.parents[at] != UNKNOWN:
        after = at + int(tree.sizes[at])
        goes_on = after < len(tree) and tree.depths[after] == tree.depths[at]
        if at == index:
            parts.append(glyphs.branch if goes_on else glyphs.last_branch)
        else:
            parts.append(glyphs.trunk if goes_on else "  ")
        at = int(tree.parents[at])
    return "".join(reversed(parts))


def first_text(frame: Frame, node: Node) -> str:
    """How a run begins, in words, or if only that was read how it ends; nothing where neither was."""
    blocks = frame.texts.blocks
    first, last = blocks.get(node.blocks[0]), blocks.get(node.last)
    if first:
        return clean("".join(first.texts).replace("\n", " "))
    return "..." + clean("".join(last.texts).replace("\n", " ")) if last else ""


def copied(view: View, inner: int, count: int, look: Look) -> list[Line]:
    """The last copies on write, the newest first, under what they come to in all."""
    events = [(step.seq, copy) for step in reversed(view.steps) for copy in reversed(step.copies)][: count - 1]
    counters = view.counters
    out: list[Line] = [
        join(
            [
                [(" copied on write ", "dim"), (figures.plural(counters.copied_blocks, "block"), "value")],
                [("forks ", "dim"), (figures.count(counters.forks), "value")],
                [(f"in the last {figures.plural(len(view.steps), 'step')}:" if events else "", "dim")],
            ],
            ("  ", "text"),
            inner,
        )
    ]
    for seq, copy in events:
        parts: list[Line] = [
            [(f"  {look.glyphs.source} step {seq:,}", "dim")],
            [(f"{copy.source:,} {look.glyphs.arrow} {copy.target:,}", "value")],
            [(figures.plural(copy.tokens, "token"), "text")],
            [(f"for {short_id(copy.request, 16)}", "dim")],
        ]
        out.append(join(parts, ("  ", "text"), inner))
    return out[:count]


def not_known(tree: PrefixTree) -> list[Line]:
    """One line on the blocks that are in no place of the tree."""
    if not tree.unknown:
        return []
    said = f" {figures.plural(tree.unknown, 'cached block')}: what they go on from was not seen"
    return [[(said, "dim")]]


def press(frame: Frame, view: View, key: str, count: int) -> Reaction:
    """Walk the rows, open and close, inspect; `count` rows are on the screen."""
    focus, tree = frame.focus, tree_of(view)
    rows = rows_of(tree, focus.sharing, count)
    if not len(rows.nodes):
        return None
    if (at := rows.moved(key)) is not None:
        return select(frame, tree, rows, at)
    node = tree.node(rows.node(rows.here))
    if key == "enter":
        chosen = replace(focus.sharing, node=node.last, top=rows.top, follow=True)
        return focus.but(sharing=chosen, inspecting=True)
    closed = focus.sharing.closed
    if key == "minus" and node.below and node.last not in closed:
        closed = closed & frozenset(tree.lasts.tolist()) | {node.last}
    elif key == "plus" and node.last in closed:
        closed = closed - {node.last}
    else:
        return None
    return focus.but(sharing=replace(focus.sharing, node=node.last, closed=closed, top=rows.top, follow=True))


def select(frame: Frame, tree: PrefixTree, rows: Rows, at: int) -> Reaction:
    """The focus with the node in row `at`, or the nearest there is."""
    if not len(rows.nodes):
        return None
    chosen = replace(frame.focus.sharing, node=tree.node(rows.node(at)).last, top=rows.top, follow=True)
    return frame.focus.but(sharing=replace(chosen, top=rows_of(tree, chosen, rows.count).top))


def scroll(frame: Frame, view: View, up: bool, count: int) -> Reaction:
    rows = rows_of(tree_of(view), frame.focus.sharing, count)
    return frame.focus.but(sharing=replace(frame.focus.sharing, top=rows.scrolled(-3 if up else 3), follow=False))


def detail(frame: Frame, view: View, width: int, look: Look) -> tuple[str, list[Line]]:
    """The selected node in full: what it is, what it saves, who holds it, where it lies and how it reads."""
    tree = tree_of(view)
    index = tree.index_of(frame.focus.sharing.node)
    if index is None:
        return "prefix", [[(" no node is selected, or it is gone", "dim")]]
    node, engine = tree.node(index), view.engine
    size = engine.block_size

    def row(name: str, value: str, role: str = "value") -> Line:
        return [(" ", "text"), *spread([(name, "dim")], [(value, role), (" ", "text")], width - 1)]

    out = [
        row("blocks", f"{len(node.blocks):,}"),
        row("tokens of the prompt", f"{node.position * size:,} to {(node.position + len(node.blocks)) * size:,}"),
        row("requests that hold it", figures.count(node.references), "shared" if node.references > 1 else "value"),
        row("found in the cache", f"{node.hits:,} times since this screen watches"),
        row("in block tables", figures.plural(node.logical_blocks, "block")),
        row("saved", f"{figures.plural(node.saved_blocks, 'block')}, {figures.size(node.saved_bytes)}", "shared"),
        row("nodes that go on from it", figures.count(node.below)),
        *wrapped(" blocks ", ranges(node.blocks), "value", width),
    ]
    names = holders(view, node)
    if names:
        ids = [(short_id(name, 20), f"hue{view.hue(name)}") for name in names]
        out += [[], [(" held by", "dim")], *_wrap_spans(ids, width)]
    for block in node.blocks:
        known = frame.texts.blocks.get(block)
        if known:
            out += [[], [(f" text of block {block:,}", "dim")]]
            words = clean("".join(known.texts).replace("\n", " "))
            out += [[(f" {words[start:end]}", "text")] for start, end in breaks(words, max(1, width - 2))]
    if not any(block in frame.texts.blocks for block in node.blocks):
        out += [[], [(f" text: {clean(frame.unread)}", "dim")]]
    if tree.seq != view.seq:
        out.append([(f" as of step {tree.seq:,}", "dim")])
    return f"prefix of {figures.plural(len(node.blocks), 'block')}", out


def ranges(blocks: Iterable[int]) -> list[str]:
    """Block ids in order, neighbours as "first-last"."""
    out: list[list[int]] = []
    for block in blocks:
        if out and block == out[-1][1] + 1:
            out[-1][1] = block
        else:
            out.append([block, block])
    return [f"{first:,}" if first == last else f"{first:,}-{last:,}" for first, last in out]


def wrapped(title: str, words: Iterable[str], role: str, width: int) -> list[Line]:
    """Words over as many lines as they need, the first after a title."""
    return _wrap_spans([(word, role) for word in words], width, [(title, "dim")])


def _wrap_spans(words: Iterable[Span], width: int, first: Line | None = None) -> list[Line]:
    out: list[Line] = []
    line: Line = first or [(" ", "text")]
    for word, role in words:
        if length(line) + len(word) + 1 > width and len(line) > 1:
            out.append(line)
            line = [(" ", "text")]
        line = [*line, (word, role), (" ", "text")]
    return [*out, line]
