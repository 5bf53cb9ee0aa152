"""One run of prefix blocks in full, and what KV events do not tell: since when they are heard, and what was missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from servers.kv_events import BlockHash
from tui import figures
from tui.focus import ServerFocus
from tui.look import Look
from tui.panels.line import Line, clean, spread
from tui.panels.server import prefix_words, words
from tui.panels.server.prefix_branches import TRUNK, digits, name
from tui.panels.server.prefix_runs import Forest, forest_of
from tui.panels.server.seen import Seen, server_of
from tui.prefix_texts import NoPrefixTexts, PrefixTexts
from tui.sources.view import KvView, ServerView
from tui.view import Frame


def on(focus: ServerFocus, run: tuple[str, BlockHash] | None) -> ServerFocus:
    """The focus with a run selected."""
    return replace(focus, run=run, follow=True)


def detail(frame: Frame, width: int, look: Look) -> tuple[str, list[Line]]:
    """The selected run: how long it is, what is above and below it, how it begins, and what nobody tells of it."""
    server = server_of(frame)
    forest = forest_of(server.kv, server.now)
    index = forest.index_of(frame.focus.server.run)
    if index is None:
        said = "no prefix run is selected, or it was removed" if server.kv else words.NO_MAP
        return "prefix run", words.told(said, width)
    run = forest.runs[index]

    def row(name: str, value: str, role: str = "value") -> Line:
        return [(" ", "text"), *spread([(name, "dim")], [(value, role), (" ", "text")], width - 1)]

    share = figures.percent(figures.ratio(run.blocks + run.below, forest.blocks))
    out = [
        row("blocks", f"{run.blocks:,}"),
        row("tokens", f"{run.before:,} to {run.before + run.tokens:,}" if run.known else f"{run.tokens:,}"),
        *_words(forest, index, frame.prefixes, width, look),
        row("top-level prefix", f"{int(forest.tops[index]) + 1:,}"),
        row("coloured as", _coloured(forest, index, look), forest.hues[index]),
        row("runs above it", f"{run.depth:,}"),
        row("blocks that go on from it", f"{run.below:,} in {figures.plural(int(forest.sizes[index]), 'run')}"),
        row("with these, of what is resident", share, "shared"),
        row("hash of its first block", digits(run.first), "text"),
        row("of its last", digits(run.last), "text"),
    ]
    if run.lora:
        out.append(row("LoRA", clean(run.lora)))
    if run.medium:
        out.append(row("kept in", clean(run.medium)))
    if len({view.endpoint for view in server.kv}) > 1:
        out.append(row("told by", clean(forest.places[index].split()[0]), "text"))
    if not run.known:
        if run.parent is not None:
            out.append(row("goes on from", digits(run.parent), "warn"))
        gone = run.above == "removed"
        said = "that was removed" if gone else "that was stored before this screen listened, or is not told"
        out += words.told(said, width, "warn")
    out.append([])
    tokens = forest.opening(index, prefix_words.WHOLE)
    if tokens and prefix_words.readable(frame.prefixes.of(tokens)):
        out += words.told(prefix_words.ids(tokens, len(tokens) == run.tokens, look), width)
    out += words.told("who holds it, and where it lies in memory, events do not tell", width)
    return f"prefix run of {figures.plural(run.blocks, 'block')}", out


def _words(forest: Forest, index: int, texts: PrefixTexts, width: int, look: Look) -> list[Line]:
    """How the run reads, else its token ids; or why neither is known."""
    tokens = forest.opening(index, prefix_words.WHOLE)
    if not tokens:
        none = isinstance(texts, NoPrefixTexts)
        said = texts.unknown if none else "its token ids were not told, or are not kept any more"
        return [[], *words.told(said, width), []]
    whole = len(tokens) == forest.runs[index].tokens
    out = words.told(prefix_words.label(tokens, whole, texts, look), width, "text")
    unread = [] if prefix_words.readable(texts.of(tokens)) else words.told(clean(texts.unknown), width)
    return [[], *out, *unread, []]


def _coloured(forest: Forest, index: int, look: Look) -> str:
    first = forest.branches[index]
    if first == TRUNK:
        return "what most share"
    return f"the branch from {name(forest.runs[first].first, look.glyphs.more)} on"


def honesty(seen: Seen, inner: int) -> list[Line]:
    """What the events are and are not, of all endpoints together: also where figures are of one engine."""
    server, views = seen.server, seen.server.kv
    out: list[Line] = []
    for view in views:
        if view.phase != "live":
            state = "connecting to" if view.phase == "connecting" else "nothing comes from"
            since = f" for {figures.seconds(server.now - view.stood)}" if view.stood is not None else ""
            detail = f": {clean(view.detail)}" if view.detail else ""
            out += words.told(f"{state} {clean(view.endpoint)}{since}{detail}", inner, "warn")
        if (began := server.outlived(view)) is not None:
            since = figures.seconds(server.now - began)
            said = f"the blocks of {clean(view.endpoint)} are of the process before: it was started again {since} ago"
            out += words.told(f"{said}, and no event of it has come", inner, "warn")
    whose = " of all engines" if seen.engine is not None else ""
    out += words.told(_heard(server, views, whose), inner)
    unheard = _unheard(views)
    return out + (words.told(unheard, inner, "warn") if unheard else [])


def doubts(seen: Seen) -> list[Line]:
    """In a few words that the tree may be in part or of then, where it may; the blocks' panel says all of it."""
    views = seen.server.kv
    if any(view.phase != "live" for view in views):
        return [[(" no KV events come", "warn")]]
    if any(seen.server.outlived(view) is not None for view in views):
        return [[(" of a process before", "warn")]]
    if any(view.tree.doubtful_since is not None for view in views):
        return [[(" events were missed", "warn")]]
    if not sum(view.heard for view in views):
        return [[(" no KV events yet", "dim")]]
    return [] if all(view.tree.complete for view in views) else [[(" of what was heard", "dim")]]


def _heard(server: ServerView, views: Sequence[KvView], whose: str) -> str:
    """Since when, and whether that is everything."""
    heard = sum(view.heard for view in views)
    if not heard:
        return "no KV events yet: they come when blocks are stored or removed"
    times = [view.since for view in views if view.since is not None]
    since = f" for {figures.seconds(server.now - min(times))}" if times else ""
    rest = ""
    if all(view.tree.complete for view in views):
        rest = "; all that is resident was heard of"
    elif any(view.tree.late for view in views):
        rest = "; what was stored before is not known"
    return f"KV events{whose}{since}, {figures.plural(heard, 'message')}{rest}"


def _unheard(views: Sequence[KvView]) -> str:
    """What was missed, and what goes on from nobody knows what."""
    churn = [view.tree.churn for view in views]
    missed, doubtful = sum(one.missed for one in churn), any(view.tree.doubtful_since is not None for view in views)
    orphans = sum(one.unknown_parents for one in churn)
    strays = sum(one.unknown_removals for one in churn)
    unknown = sum(one.unknown_events for one in churn)
    left_out = sum(one.left_out for one in churn)
    parts = [
        f"missed {figures.plural(missed, 'message')}{': blocks may be shown that are gone' if doubtful else ''}"
        if missed
        else "",
        f"{figures.plural(orphans, 'time')} stored after a parent that was not seen" if orphans else "",
        f"{figures.plural(strays, 'removal')} of blocks that were not seen" if strays else "",
        f"{figures.plural(unknown, 'event')} of a kind that is not known here" if unknown else "",
        f"{figures.plural(left_out, 'block')} beyond what is kept" if left_out else "",
    ]
    return "; ".join(part for part in parts if part)
