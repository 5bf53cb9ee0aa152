"""The prefix blocks that KV events say are resident: the trees of all endpoints as rows that can be walked and closed.

A tree of a few thousand runs is laid out again only when events came, and a large one once in a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from servers.kv_events import BlockHash
from servers.kv_tree import KvTree, Run
from tui import figures
from tui.focus import ServerFocus
from tui.look import Look
from tui.panels.line import Line, clean, cut, fit, length, spread
from tui.panels.server import prefix_branches, prefix_words
from tui.panels.tree_rows import Rows
from tui.prefix_texts import NOT_WATCHED, PrefixTexts
from tui.sources.view import KvView

Ints = npt.NDArray[np.int64]
LARGE = 2_000  # runs, from which on a layout may be a second old
_INDENT = 16  # cells of a row that its depth takes at most
_NAMED = 48  # cells, from which on a prefix is called one
_WHOLE = 100  # cells from which on a row says why what comes before it is not here
_COMPARED = 16  # runs that go on from the same one, at most
_NARROW = 34  # cells, under which a row is its name, its blocks and its share

ABOVE = {  # what comes before a run that is not here
    "unseen": "blocks that were not seen",
    "removed": "removed blocks",
}


@dataclass(frozen=True, slots=True)
class Forest:
    """Runs of all endpoints, depth first, in the order of the endpoints; a run's `sizes` are the rows under it, and
    `parents` the run that it goes on from, -1: none.

    `starts` is the place of a run's first block among all, `tops` the number of the top-level prefix that it is part
    of, `branches` the run that its branch begins with, `hues` its colour's role, `trunks` bits of the depths at which
    a line goes on beside it.
    """

    runs: tuple[Run, ...]
    places: tuple[str, ...]  # of each run: who told of it, of which rank and group
    trees: tuple[KvTree, ...] = field(repr=False)  # that each is of
    sizes: Ints
    parents: Ints
    starts: Ints
    tops: Ints
    branches: tuple[int, ...]
    hues: tuple[str, ...]
    trunks: tuple[int, ...]
    blocks: int
    time: float  # at which it was laid out
    _alike: dict[int, tuple[int, ...]] = field(default_factory=dict, repr=False)  # by the run that they go on from

    def __len__(self) -> int:
        return len(self.runs)

    def name(self, index: int) -> tuple[str, BlockHash]:
        """What the focus calls a run."""
        return self.places[index], self.runs[index].last

    def index_of(self, name: tuple[str, BlockHash] | None) -> int | None:
        """The run of a name; None where it is gone."""
        if name is None:
            return None
        return next(
            (at for at, run in enumerate(self.runs) if run.last == name[1] and self.places[at] == name[0]), None
        )

    def visible(self, closed: frozenset[tuple[str, BlockHash]]) -> Ints:
        """The runs that no closed one hides."""
        shown = np.ones(len(self), np.bool_)
        for name in closed:
            if (at := self.index_of(name)) is not None:
                shown[at + 1 : at + 1 + self.sizes[at]] = False
        return np.flatnonzero(shown)

    def opening(self, index: int, most: int) -> tuple[int, ...]:
        """The first token ids of a run, as far as they are kept."""
        return self.trees[index].opening(self.runs[index], most)

    def alike(self, index: int) -> int:
        """How many token ids a run has in common with all that go on from the same one: blocks differ anywhere."""
        parent = int(self.parents[index])
        if parent < 0:
            return 0
        if parent not in self._alike:
            at = parent + 1
            openings: list[tuple[int, ...]] = []
            while at <= parent + self.sizes[parent] and len(openings) < _COMPARED:
                openings.append(self.opening(at, prefix_words.BRIEF))
                at += int(self.sizes[at]) + 1
            self._alike[parent] = _common(openings)
        common, own = self._alike[parent], self.opening(index, prefix_words.BRIEF)
        return len(common) if common == own[: len(common)] != own else 0

    @property
    def shared(self) -> bool:
        """Whether there is a trunk, of which nearly all others go on."""
        return prefix_branches.TRUNK in self.branches


def build(views: Sequence[KvView], now: float = 0.0) -> Forest:
    """The rows of all that is resident now."""
    runs: list[Run] = []
    places: list[str] = []
    trees: list[KvTree] = []
    for view in views:
        found = list(view.tree.runs())
        runs += found
        places += [f"{view.endpoint} {run.rank} {run.group}" for run in found]
        trees += [view.tree] * len(found)
    count = len(runs)
    sizes = np.zeros(count, np.int64)
    parents = np.full(count, -1, np.int64)
    starts = np.zeros(count, np.int64)
    tops = np.zeros(count, np.int64)
    trunks = [0] * count
    above: list[int] = []
    at, top = 0, -1
    for index, run in enumerate(runs):
        while len(above) > run.depth:
            last = above.pop()
            sizes[last] = index - last - 1
        if above:
            parents[index] = above[-1]
        above.append(index)
        top += run.depth == 0
        starts[index], tops[index] = at, top
        at += run.blocks
    for last in above:
        sizes[last] = count - last - 1
    goes_on = 0
    for index in range(count - 1, -1, -1):
        depth = runs[index].depth
        trunks[index] = goes_on & ((2 << depth) - 1)
        goes_on = trunks[index] | 1 << depth
    branches = prefix_branches.branches(runs, places)
    hues = prefix_branches.roles(runs, branches)
    return Forest(
        tuple(runs),
        tuple(places),
        tuple(trees),
        sizes,
        parents,
        starts,
        tops,
        tuple(branches),
        hues,
        tuple(trunks),
        at,
        now,
    )


@dataclass(slots=True)
class _Latest:
    """The last forest of a set of trees, and what each had taken when it was laid out."""

    trees: tuple[KvTree, ...] = ()
    changes: tuple[int, ...] = ()
    forest: Forest | None = None

    def of(self, views: Sequence[KvView], now: float) -> Forest:
        trees, changes = tuple(view.tree for view in views), tuple(view.tree.changes for view in views)
        same = len(trees) == len(self.trees) and all(a is b for a, b in zip(trees, self.trees, strict=True))
        if self.forest is None or not same or (changes != self.changes and not self._serves(now)):
            self.forest = build(views, now)
            self.trees, self.changes = trees, changes
        return self.forest

    def _serves(self, now: float) -> bool:
        assert self.forest is not None
        count = len(self.forest)
        return count >= LARGE and 0 <= now - self.forest.time < count / LARGE


_latest = _Latest()


def forest_of(views: Sequence[KvView], now: float) -> Forest:
    """The rows of a server's trees; several panels of a frame ask for the same ones."""
    return _latest.of(views, now)


def rows_of(forest: Forest, focus: ServerFocus, count: int) -> Rows:
    """What `count` rows show: from where the focus says, moved so far that the selected run is among them."""
    return Rows.of(forest.visible(focus.closed), forest.index_of(focus.run), focus.top, focus.follow, count)


def heads(forest: Forest, inner: int) -> Line:
    """How many runs there are, and the names of the columns."""
    runs = figures.plural(len(forest), "prefix run" if inner >= _NAMED else "run")
    return spread([(f"  {runs}", "dim")], [(_columns(inner, "blocks", "below", "of all", "tokens"), "dim")], inner)


def lines(
    forest: Forest, focus: ServerFocus, inner: int, count: int, look: Look, texts: PrefixTexts = NOT_WATCHED
) -> list[Line]:
    """The rows, `count` at most."""
    rows = rows_of(forest, focus, count)
    shown = rows.nodes[rows.top : rows.top + count].tolist()
    return [
        _row(forest, index, rows.top + at == rows.selected, forest.name(index) in focus.closed, inner, look, texts)
        for at, index in enumerate(shown)
    ]


def _columns(inner: int, blocks: str, below: str, share: str, tokens: str) -> str:
    """Figures at the right of a row: what matters least gives way first."""
    if inner < _NARROW:
        return f"{blocks:>5} {share:>5}"
    text = f"{blocks:>8} {below:>8} {share:>8} "
    return text if inner < 56 else f"{text}{tokens:>9} "


def _row(forest: Forest, index: int, selected: bool, closed: bool, inner: int, look: Look, texts: PrefixTexts) -> Line:
    run, glyphs = forest.runs[index], look.glyphs
    fold = " " if not run.children else glyphs.right if closed else glyphs.down_open
    role = "cursor" if selected else forest.hues[index]
    share = figures.percent(figures.ratio(run.blocks + run.below, forest.blocks))
    indent = _branches(forest, index, look)[-min(_INDENT, inner // 4) :]
    name: Line = [
        (glyphs.live if selected else " ", role),
        (indent if inner >= _NARROW else indent[-2:], "faint"),
        (f"{fold} " if inner >= _NARROW or run.children else "", "dim"),
    ]
    if closed and forest.sizes[index]:
        name.append((f"+{int(forest.sizes[index]):,} ", "dim"))
    if not run.known:
        name.append((_after(run, inner, look), "warn"))
    elif run.depth == 0 and inner >= _NAMED:
        name.append((f"prefix {int(forest.tops[index]) + 1:,} ", role))
    named = begins(forest, index, texts, look) if inner >= _NARROW else ""
    if not named:
        brief = inner < _NARROW
        called = prefix_branches.name(run.first, "" if brief else glyphs.more, 4 if brief else prefix_branches.SIGNS)
        name.append((f"{called} ", role))
    if run.lora:
        name.append((f"lora {clean(run.lora)} ", "text"))
    if run.medium and run.medium.upper() != "GPU":
        name.append((f"in {clean(run.medium)} ", "text"))
    if named:
        name.append((named, role))
    right: Line = [
        (
            _columns(inner, f"{run.blocks:,}", f"{run.below:,}", share, f"{run.tokens:,}"),
            "cursor" if selected else "value",
        )
    ]
    room = max(1, inner - length(right) - 1)
    return spread(fit(cut(name, room, glyphs.more) if named else name, room), right, inner)


def _after(run: Run, inner: int, look: Look) -> str:
    """What a run goes on from that is not here: those with the same hash are branches of the same prompt."""
    missing = look.glyphs.missing
    if inner < _NAMED:
        return missing
    before = prefix_branches.name(run.parent, look.glyphs.more) if run.parent is not None else ""
    if not before or inner >= _WHOLE:
        return f"{missing} after {ABOVE[run.above]} {before}{' ' if before else ''}"
    return f"{missing} after {before} "


def begins(forest: Forest, index: int, texts: PrefixTexts, look: Look) -> str:
    """How a run begins, from where it differs from others that go on from the same one."""
    alike = forest.alike(index)
    tokens = forest.opening(index, alike + prefix_words.BRIEF)
    return prefix_words.label(tokens[alike:], len(tokens) == forest.runs[index].tokens, texts, look, alike > 0)


def _common(openings: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """What all begin with; of one alone nothing."""
    first, last = min(openings), max(openings)
    if len(openings) < 2:
        return ()
    return first[: next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _branches(forest: Forest, index: int, look: Look) -> str:
    """The lines that lead to a run from those above it."""
    depth, trunks, glyphs = forest.runs[index].depth, forest.trunks[index], look.glyphs
    parts = [glyphs.trunk if trunks >> level & 1 else "  " for level in range(max(1, depth - _INDENT), depth)]
    own = [] if depth == 0 else [glyphs.branch if trunks >> depth & 1 else glyphs.last_branch]
    return "".join(parts + own)


def moved(forest: Forest, focus: ServerFocus, key: str, count: int) -> ServerFocus | None:
    """The focus after a key that walks the rows, opens or closes one; None: the key means nothing here."""
    rows = rows_of(forest, focus, count)
    if not len(rows.nodes):
        return None
    if (at := rows.moved(key)) is not None:
        return selected(forest, focus, rows, at)
    index = rows.node(rows.here)
    name, closed = forest.name(index), focus.closed
    if key == "minus" and forest.sizes[index] and name not in closed:
        known = {forest.name(one) for one in range(len(forest))} if len(closed) > 1_000 else closed
        closed = (closed & frozenset(known)) | {name}
    elif key == "plus" and name in closed:
        closed = closed - {name}
    else:
        return None
    return replace(focus, run=name, closed=closed, top=rows.top, follow=True)


def selected(forest: Forest, focus: ServerFocus, rows: Rows, at: int) -> ServerFocus:
    """The focus on the run in row `at`, or the nearest there is."""
    chosen = replace(focus, run=forest.name(rows.node(at)), top=rows.top, follow=True)
    return replace(chosen, top=rows_of(forest, chosen, rows.count).top)


def scrolled(forest: Forest, focus: ServerFocus, by: int, count: int) -> ServerFocus:
    """The focus with the rows moved, whatever is selected."""
    return replace(focus, top=rows_of(forest, focus, count).scrolled(by), follow=False)
