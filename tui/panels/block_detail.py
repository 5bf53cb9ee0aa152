"""What is known of one physical block: in a line, in the inspector, and as a list of what happened to it."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

from engine.protocol import Record
from tui import figures, map_paths
from tui.block_columns import NAMES
from tui.cells import HOLE, states
from tui.look import Look
from tui.panels.line import Line, clean, short_id
from tui.view import Frame, View

NAME_WIDTH = 12  # of a request's id
_LABEL = 13  # cells
_CHAIN = 6  # blocks of the chain before a block that are named


def name(view: View, block: int) -> str:
    """A block's state in words."""
    if states(view, block, block + 1)[0] == HOLE:
        held = "cached" if view.blocks.hashed[block] else "free"
        return f"{held}, in a hole too short for a reservation"
    return NAMES[int(view.blocks.state[block])]


def since(view: View, block: int) -> str:
    """When it was last taken."""
    taken = float(view.blocks.since[block])
    return "before this screen watched" if isnan(taken) else f"{figures.seconds(view.now - taken)} ago"


def told(view: View, block: int) -> tuple[str, ...]:
    """A block in one line: whose, how far filled, whether it can be found, since when; and in shorter ones."""
    blocks, size = view.blocks, view.engine.block_size
    references, state = int(blocks.references[block]), name(view, block)
    if not references and not blocks.hashed[block]:
        return (f"block {block:,}: {state}",)
    parts = [f"{blocks.filled[block]}/{size}"]
    if references > 1:
        parts.insert(0, f"shared by {references:,}")
    elif references:
        parts.insert(0, f"{state}, {_owner(view, block)}")
    else:
        parts.insert(0, state)
    if references:
        parts.append("cached hash" if blocks.hashed[block] else "no hash")
    parts.append(f"taken {since(view, block)}")
    if blocks.hits[block]:
        parts.append(f"found {figures.plural(int(blocks.hits[block]), 'time')}")
    return tuple(f"block {block:,}: {', '.join(parts[:count])}" for count in range(len(parts), 1, -1))


def _owner(view: View, block: int) -> str:
    owner = int(view.blocks.owner[block])
    for request, ordinal in view.ordinals.items():
        if ordinal == owner:
            return short_id(request, NAME_WIDTH)
    return figures.NOT_MEASURED


def detail(frame: Frame, width: int, look: Look) -> tuple[str, list[Line]]:
    """Everything about the block under the cursor; `width` is the inside of the inspector's box."""
    view, block = frame.view, frame.focus.map.block
    if view is None or block is None or not len(view.blocks):
        return "block", [[(" no block is selected", "dim")]]
    block = min(block, len(view.blocks) - 1)
    blocks, size = view.blocks, view.engine.block_size
    text = frame.texts.blocks.get(block)
    changed = int(blocks.changed[block])
    facts = [
        ("state", name(view, block)),
        ("filled", f"{blocks.filled[block]} of {size} slots"),
        ("references", f"{blocks.references[block]:,}"),
        ("hash", _hash(view, block, text.hash if text is not None else None)),
        ("goes on from", _chain(view, block, look)),
        ("taken", since(view, block) if blocks.references[block] or blocks.hashed[block] else figures.NOT_MEASURED),
        ("last change", f"step {changed:,}" if changed else "before this screen watched"),
        ("found", f"{figures.plural(int(blocks.hits[block]), 'time')} in the cache"),
    ]
    out: list[Line] = []
    for label, value in facts:
        for index, piece in enumerate(_wrap(value, width - _LABEL - 2)):
            out.append([(f" {label if not index else '':<{_LABEL}}", "dim"), (piece, "value" if not index else "text")])
    out += _owners(view, block, width)
    out += [[], [(" tokens", "title")]]
    if text is not None:
        shown = "".join(piece.replace("\n", "\\n") for piece in text.texts)
        out += [[(f" {piece}", "text")] for piece in _wrap(clean(shown), width - 2)] or [[(" none yet", "dim")]]
    else:
        out.append([(f" {clean(frame.unread)}", "dim")])
    out += [[], [(" what happened to it", "title")]]
    events = frame.block_events or _copies(view, block)
    for seq, what in reversed(events):
        for index, piece in enumerate(_wrap(clean(what), width - _LABEL - 2)):
            out.append([(f" {f'step {seq:,}' if not index else '':<{_LABEL}}", "dim"), (piece, "text")])
    if not events:
        out.append([(" nothing in the records kept", "dim")])
    return f"block {block:,}", out


def _hash(view: View, block: int, known: str | None) -> str:
    if not view.blocks.hashed[block]:
        return "none: it cannot be found in the cache"
    return clean(known) if known else "yes: it can be found in the cache"


def _chain(view: View, block: int, look: Look) -> str:
    """The blocks before it in the tables that hold or held it, the nearest last."""
    before = map_paths.chain(view, block)[:-1].tolist()
    if not before:
        return "nothing: a table begins with it" if view.blocks.references[block] else "not known"
    named = f" {look.glyphs.arrow} ".join(f"{one:,}" for one in before[-_CHAIN:])
    return named if len(before) <= _CHAIN else f"{figures.plural(len(before), 'block')}, the last {_CHAIN}: {named}"


def _owners(view: View, block: int, width: int) -> list[Line]:
    """The requests that hold it, with its index in their tables, as many as fit on three lines."""
    owners = map_paths.owners(view, block)
    out: list[Line] = [[], [(" held by ", "title"), (figures.plural(len(owners), "request"), "title")]]
    texts = [f"{short_id(request, NAME_WIDTH)}[{index}]" for request, index in owners]
    lines = _wrap("  ".join(texts), width - 2)
    out += [[(f" {piece}", "text")] for piece in lines[:3]]
    if len(lines) > 3:
        shown = sum(piece.count("[") for piece in lines[:3])
        out.append([(f" and {len(owners) - shown:,} more", "dim")])
    return out


def _copies(view: View, block: int) -> tuple[tuple[int, str], ...]:
    """What the steps kept tell of a block: only its copies."""
    return tuple(
        (step.seq, _copied(copy.source, copy.target, block, short_id(copy.request, NAME_WIDTH), copy.tokens))
        for step in view.steps
        for copy in step.copies
        if block in (copy.source, copy.target)
    )


def _copied(source: int, target: int, block: int, request: str, tokens: int) -> str:
    slots = figures.plural(tokens, "slot")
    if block == source:
        return f"copied to block {target:,} for {request}, {slots}"
    return f"copied from block {source:,} for {request}, {slots}"


def _wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, cut after a blank where there is one in the last third."""
    width, out = max(8, width), []
    while len(text) > width:
        cut = text.rfind(" ", width * 2 // 3, width) + 1 or width
        out.append(text[:cut].rstrip())
        text = text[cut:].lstrip(" ")
    return [*out, text] if text else out


def block_events(records: Iterable[Record], block: int, block_size: int) -> list[tuple[int, str]]:
    """What happened to a block in records that follow one another, the oldest first: (record's number, words).

    Who held it before the first of them is not known, so what only such a request did to it is not told.
    """
    story = _Story(block, block_size)
    for record in records:
        story.take(record)
    return story.events


class _Story:
    """Follows one block: `indices` are its indices in the tables of the requests seen to hold it."""

    def __init__(self, block: int, block_size: int) -> None:
        self.events: list[tuple[int, str]] = []
        self._block, self._size = block, block_size
        self._indices: dict[str, int] = {}
        self._cached: bool | None = None  # nobody's and findable; None: not known
        self._hashed: bool | None = None
        self._full = False
        self._filling = ""  # who filled it, while the last event says so

    def take(self, record: Record) -> None:
        self._preempt_and_leave(record)
        after = next((one for one in record.blocks if one.block == self._block), None)
        self._change_tables(record, 1 if after is None else after.references)
        for copy in record.copies:
            if self._block in (copy.source, copy.target):
                request = short_id(copy.request, NAME_WIDTH)
                self._tell(record.seq, _copied(copy.source, copy.target, self._block, request, copy.tokens))
        self._fill(record)
        self._leave(record)
        if after is not None:
            if after.filled == self._size and after.references and not self._full:
                self._tell(record.seq, "became full")
            self._full = after.filled == self._size and after.references > 0
            if after.hashed and self._hashed is False:
                self._tell(record.seq, "hashed: others can find it")
            if after.state == "free" and self._cached:
                self._tell(record.seq, "forgotten by the cache")
            elif after.state == "free":
                self._tell(record.seq, "freed")
            elif after.state == "cached" and self._cached is not True:
                self._tell(record.seq, "cached: nobody holds it, it can be found")
            self._hashed, self._cached = after.hashed, after.state == "cached"

    def _preempt_and_leave(self, record: Record) -> None:
        """Those whose blocks go before the step takes any."""
        for lost in record.preempted:
            self._release(record.seq, lost.request, "preempted, swapped out" if lost.by == "swap" else "preempted")
        for request in record.released:
            self._release(record.seq, request, "its batch ended")

    def _leave(self, record: Record) -> None:
        for left in record.left:
            self._release(record.seq, left.request, left.reason)

    def _change_tables(self, record: Record, references: int) -> None:
        found = {one.request: one.cached_tokens - one.copied_tokens for one in record.joined}
        parents = {one.request: one.parent for one in record.joined if one.parent is not None}
        for change in record.tables:
            request, had = change.request, self._indices.get(change.request)
            if self._block not in change.blocks:
                if had is not None and had >= change.start:
                    self._release(record.seq, request, "replaced in its table" if change.blocks else "cut off")
                continue
            index = change.start + change.blocks.index(self._block)
            if had == index:
                continue
            who = f"{short_id(request, NAME_WIDTH)}[{index}]"
            if request in parents:
                self._tell(record.seq, f"shared with {who}, a fork of {short_id(parents[request], NAME_WIDTH)}")
            elif (index + 1) * self._size <= found.get(request, 0):
                self._tell(record.seq, f"found in the cache, shared with {who}")
            else:
                if self._cached:
                    self._tell(record.seq, "evicted: what it held is forgotten")
                    self._hashed = False
                self._tell(record.seq, f"taken by {who}" if references == 1 else f"shared with {who}")
            self._indices[request], self._cached = index, False

    def _fill(self, record: Record) -> None:
        """A row fills its slots up to its context: told once while one request goes on with it."""
        for row in record.rows:
            index = self._indices.get(row.request)
            if index is None or row.kind == "held" or not row.tokens:
                continue
            before, until = row.context - row.tokens, min(row.context - index * self._size, self._size)
            if until <= 0 or before >= (index + 1) * self._size:
                continue
            goes_on = self._filling == row.request
            if goes_on:
                self.events.pop()
            self._tell(record.seq, f"filled to {until}/{self._size} by {short_id(row.request, NAME_WIDTH)}")
            self._filling = row.request

    def _release(self, seq: int, request: str, why: str) -> None:
        if self._indices.pop(request, None) is not None:
            self._tell(seq, f"released by {short_id(request, NAME_WIDTH)} ({why})")

    def _tell(self, seq: int, what: str) -> None:
        self.events.append((seq, what))
        self._filling = ""
