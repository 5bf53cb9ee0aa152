"""The help: the keys that work here, those of the panel in front first, and what every glyph means."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from tui import controls
from tui.keys import GlobalKey, offered
from tui.look import Look
from tui.panels import block_map, sets
from tui.panels.line import Line, box, fit
from tui.panels.server import prefix_map
from tui.view import Frame

_GROUPS = {"screen": "the screen", "time": "time", "engine": "the engine"}
_COLUMN = 44  # cells of a column
_KEY = 12  # cells of a key or a glyph, before what it means
_NOTES = (
    "A colour is a request, the same in the map and in the batch.",
    "— was not measured.",
    "The mouse: click selects, the wheel scrolls or zooms; keys can be clicked.",
    "Client: what a load generator measured itself, from sent or from due, when the trace says to send.",
    "Events: switches, preemptions, copies, gaps, a cleared cache, faults, requests that failed.",
)
_SERVER_NOTES = (
    "— is not told by that server, or nothing came in that time.",
    "≤ 250 ms: servers tell quantiles as buckets; this one is at most its bucket's bound.",
    "What is dim is of then: that server does not tell now. It is in no total.",
    "KV is weighted by capacity, and has no total where one capacity is not known. Rates are added up.",
    "A total's quantile is over all requests of those that tell it, by the bounds that all of them have: it may be "
    "coarser than each one's.",
    "~ is reckoned from a share. Tokens that are counted when a request ends come all at once: the panel says so.",
    "A chart: bars are its first figure, marks the others, where they are not 0; a gap was not told.",
    "A column has the highest of a level (running, waiting, KV) in its time, and the mean of a rate.",
    "The mouse: click selects, again opens; the wheel scrolls; keys can be clicked.",
    "Events: restarts, another server at that address, no answer and again one, missed KV events.",
)
_CLUSTER_NOTES = (
    "— was not told, or not measured.",
    "KV: held by requests, then cached, then free. Move: requests between two workers. In/s, out/s: tokens prefilled "
    "and decoded a second, over the last 5 s. Hits: of the prompt tokens looked up, those found. Load: tokens "
    "outstanding, as the router has it. Died: restarts. MB/s: of what is 1 MiB or more.",
    "Totals are of the workers that serve; shares are of all of it together. 900+: one of them has no rate yet.",
    "Prefills beside decodes: i tells how that is measured, and of each worker.",
    "The mouse: click selects, again opens; the wheel scrolls; keys can be clicked.",
    "Events: workers that die, start, come and go, switches, failed transfers, an answer after none.",
)


def lines(frame: Frame, width: int, look: Look) -> list[Line]:
    """Everything, in as many columns as fit."""
    panels, columns = sets.of(frame), max(1, width // _COLUMN)
    panel = frame.focus.panel
    cells = width // columns - 1  # the last one parts it from the next column
    here = [(key.keys, "key", key.does) for key in panels.modules[panel].KEYS]
    sections = [_section(f"in {panels.titles[panel]}", here, cells)]
    offers = offered(frame)
    for group, name in _GROUPS.items():
        keys = [key for key in offers if key.group == group and (frame.status.playing or not key.replays)]
        if group == "engine" and keys and frame.status.fixed:
            sections.append([[(" the engine", "title")], [(f" {frame.status.fixed}", "dim")]])
        elif keys:
            sections.append(_section(name, [(key.shown, "key", _does(key)) for key in keys], cells))
    if frame.kind == "steps":
        sections.append(_section("the map", block_map.legend(look), cells))
        sections += [_section("the batch", _batch(look), cells), _notes(_NOTES, look, cells)]
    elif frame.kind == "cluster":
        sections.append(_section("a worker", _worker(look), cells))
        sections.append(_notes(_CLUSTER_NOTES, look, cells))
    else:
        if frame.server is not None and frame.server.kv:
            sections.append(_section("the map by prefix", prefix_map.meanings(look), cells))
        sections.append(_notes(_SERVER_NOTES, look, cells))
    return _columns(sections, columns, width // columns)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    body, rows = lines(frame, width - 2, look), height - 2
    top = max(0, min(frame.focus.help_top, len(body) - rows))
    more: Line = [("? closes", "dim")]
    if len(body) > rows:
        more = [(f"lines {top + 1} to {min(len(body), top + rows)} of {len(body)}: J K", "dim")]
    return box("help", more, body[top : top + rows], width, height, look.glyphs, front=True)


def _does(key: GlobalKey) -> str:
    for keyed in controls.KEYED:
        if key.action == f"switch('{keyed.field}')":
            words = [controls.word(choice).split()[0] for choice in keyed.choices]
            return f"{keyed.name}: {('/' if len(words) < 4 else ', ').join(words)}"  # many need a place to break
    return key.does


def _section(title: str, entries: Sequence[tuple[str, str, str]], cells: int) -> list[Line]:
    """Keys or glyphs, each with its role and what it means, in lines of at most `cells`."""
    out: list[Line] = [[(f" {title}", "title")]]
    for shown, role, means in entries:
        for at, words in enumerate(wrap(means, cells - _KEY)):
            out.append([(f" {'' if at else shown:<{_KEY - 2}} ", role), (words, "text")])
    return out


def _worker(look: Look) -> list[tuple[str, str, str]]:
    glyphs = look.glyphs
    return [
        (glyphs.live, "good", "ready"),
        (glyphs.down, "warn", "starting"),
        (glyphs.released, "warn", "draining: ends what it has, takes nothing new"),
        (glyphs.aborted, "bad", "dead: its row says why"),
        (glyphs.prefill, "speed", "KV that requests hold"),
        (glyphs.cached, "cached", "cached, and free to be taken"),
        (glyphs.free, "free", "free"),
    ]


def _batch(look: Look) -> list[tuple[str, str, str]]:
    glyphs = look.glyphs
    return [
        (glyphs.prefill, "prefill", "prefill: prompt tokens"),
        (glyphs.decode, "text", "decode: one token"),
        (glyphs.fork, "text", "fork: goes on from its parent"),
        (glyphs.waiting, "waiting", "waits in the queue"),
        (glyphs.left, "end", "the request ended here"),
        (glyphs.held, "held", "held: ended, kept by its batch"),
        (glyphs.preempted, "bad", "preempted: is computed again"),
        (glyphs.swapped, "bad", "preempted: KV to host memory"),
        (glyphs.aborted, "bad", "aborted, failed or too late"),
        (glyphs.missing, "bad", "records before it are missing"),
        (glyphs.switch, "switch", "a control was switched"),
    ]


def _notes(texts: Sequence[str], look: Look, cells: int) -> list[Line]:
    texts = [text.replace("—", look.glyphs.dash) for text in texts]
    return [[(" notes", "title")], *([(f" {line}", "dim")] for text in texts for line in wrap(text, cells - 1))]


def _columns(sections: Sequence[list[Line]], columns: int, width: int) -> list[Line]:
    """Sections one under the other, in columns of about equal height."""
    total = sum(len(section) + 1 for section in sections)
    out: list[list[Line]] = [[]]
    for section in sections:
        if out[-1] and len(out) < columns and len(out[-1]) + len(section) / 2 > total / columns:
            out.append([])
        out[-1] += [*section, []]
    rows = max(len(column) for column in out)
    return [
        [span for column in out for span in fit(column[row] if row < len(column) else [], width)] for row in range(rows)
    ]
