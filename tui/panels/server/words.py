"""What is said where a source does not tell something: why, and what would change it."""

from __future__ import annotations

import re

from servers.dialects import BY_KIND
from tui.panels.line import Line, breaks, clean, cut, fit, text_of
from tui.sources.view import ServerView

NOT_ON_PAGE = "its page does not tell it"
NOT_BY_ENGINE = "it tells this of all engines together: v"
ONE_LOOK = "one look so far: rates need two"
NONE_CAME = "none in this window"
BEGAN_ANEW = "its counters began anew: rates need two looks since"
NO_MAP = "no map of blocks: metrics tell how much is used, not which block holds what"
MAP_BY_PREFIX = "with KV events there is a map by prefix: 3 tells how to switch them on"
NO_BATCH = "no source tells who was in a batch, or how much of it was prompts"
NO_REQUESTS = "metrics tell no single requests, only how many and their totals"
NO_SLOTS = "slots that are held and not filled are not told: waste is not known"
NO_MAP_BRIEF = "no map: metrics tell no blocks"
NO_SLOTS_BRIEF = "slots: not told"
NO_PREFIXES_BRIEF = "prefixes: not told"
NO_CONTROL = "nothing can be switched from here on this server: its settings are those it was started with"
_KV_PLACES = "tcp://HOST:5557,tcp://HOST:5558"
AT_END = "counted when a request ends"
STEPS = "the engine's step stream tells it"
_GAP = re.compile(r" {2,}(?=\S|$)")  # between a word and its figure


def title(kind: str) -> str:
    """What people call a kind of server."""
    dialect = BY_KIND.get(kind)
    return dialect.title if dialect is not None else kind or "a server"


def missing(kind: str, *keys: str) -> str:
    """Why this kind of server does not tell a term, or what a panel is about: the first that is known of `keys`."""
    dialect = BY_KIND.get(kind)
    told = dialect.missing if dialect is not None else {}
    return next((told[key] for key in keys if key in told), NOT_ON_PAGE)


def steps(why: str) -> str:
    """Of our own engine: what tells more than metrics, and why that is not what is shown."""
    return f"{STEPS}: {clean(why)}" if why else STEPS


def unread(server: ServerView) -> str:
    """Why there is no reading at all."""
    link = server.link
    detail = f": {clean(link.detail)}" if link.detail else ""
    match link.phase:
        case "finding":
            return f"asking which server this is{detail}"
        case "locked":
            return f"it wants a key{detail}"
        case "foreign":
            return f"not a server that is known here{detail}"
        case "failing":
            return f"nothing was read{detail}"
    return "no look yet"


def fitted(lines: list[Line], rows: int, width: int, more: str) -> list[Line]:
    """As many lines as there is room for; the last one shows that there were others."""
    if len(lines) <= rows or rows < 1:
        return lines[: max(0, rows)]
    return [*lines[: rows - 1], marked(lines[rows - 1], width, more)]


def marked(line: Line, width: int, more: str) -> Line:
    """A line with the mark that more follow at its end, a cell apart: figures move to the left for it where there is a
    gap, for behind one it would say that it is cut, and words give way."""
    end = len(text_of(line).rstrip())
    over = end + 1 + len(more) - width
    if over > 0 and (line := _closer(line, over)) and len(text_of(line).rstrip()) == end:
        return cut([*line, (" " * width, "text")], width - 1, more)
    return [*fit(line, width - len(more)), (more, "dim")]


def _closer(line: Line, cells: int) -> Line:
    """A line with so many cells less in its widest gap; as it is where no gap has them to spare."""
    gaps = [(len(gap[0]), at, gap.start()) for at, (text, _) in enumerate(line) for gap in _GAP.finditer(text)]
    wide, at, start = max(gaps, default=(0, 0, 0))
    if wide <= cells:
        return line
    text, role = line[at]
    return [*line[:at], (text[:start] + text[start + cells :], role), *line[at + 1 :]]


def told(text: str, width: int, role: str = "dim") -> list[Line]:
    """A sentence over as many lines as it needs."""
    inner = max(8, width - 2)
    return [[(f" {text[begin:end]}", role)] for begin, end in breaks(text, inner)]


def kv_flag(kind: str) -> str:
    """How KV events are switched on for a kind of server that has them; empty where it has none."""
    flag = {
        "vllm": (
            """--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", """
            """"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'"""
        ),
        "sglang": (
            """--kv-events-config '{"publisher": "zmq", "topic": "kv-events", """
            """"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'"""
        ),
        "paged-engine": "--kv-events tcp://127.0.0.1:5557 --kv-events-replay tcp://127.0.0.1:5558",
    }.get(kind)
    if flag is None:
        return ""
    return (
        f"which prefixes are resident, KV events tell: start it with {flag}, and paged-top with --kv-events "
        f"{_KV_PLACES} (or kv={_KV_PLACES} in its line of a fleet file)"
    )


def note(kind: str, term: str) -> str:
    """What a reader of a term must know of how this kind of server tells it; empty where there is nothing."""
    dialect = BY_KIND.get(kind)
    return dialect.notes.get(term, "") if dialect is not None else ""


def notes(kind: str, *terms: str) -> str:
    """The same of several, in one line, those of which the same is to be known together."""
    by_words: dict[str, list[str]] = {}
    for term in terms:
        if said := note(kind, term):
            by_words.setdefault(said, []).append(term.replace("_", " "))
    return "; ".join(f"{' and '.join(named)}: {said}" for said, named in by_words.items())
