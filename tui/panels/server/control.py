"""What the server is, and that nothing can be switched from here on it."""

from __future__ import annotations

from tui import figures
from tui.commands import Key, Reaction, Say
from tui.look import Look
from tui.panels.line import Line, clean
from tui.panels.server import choice, words
from tui.panels.server.seen import Seen, name_of
from tui.view import Frame

KEYS: tuple[Key, ...] = (Key("enter", "every fact in full"), *choice.KEYS)
_NAMES = {
    "version": "version",
    "block_size": "block size",
    "blocks": "KV blocks",
    "kv_dtype": "KV cache type",
    "prefix_caching": "prefix caching",
}


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    seen, inner, rows = Seen.of(frame), width - 2, height - 2
    body = [*_cannot(seen, inner), [], *_facts(frame, seen, inner)]
    return choice.bordered("control", "control", frame, seen, body[:rows], width, height, look)


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    if (common := choice.press(frame, key)) is not None:
        return common
    if key == "enter":
        return frame.focus.but(inspecting=True)
    return Say(_why(Seen.of(frame))) if key in ("up", "down", "plus", "minus") else None


def detail(frame: Frame, width: int, look: Look) -> tuple[str, list[Line]]:
    """Every fact, on as many lines as it needs."""
    seen = Seen.of(frame)
    return seen.title, [*_facts(frame, seen, width), [], *_cannot(seen, width)]


def _why(seen: Seen) -> str:
    kind = seen.server.kind
    return f"controls: {words.steps(seen.steps)}" if kind == "paged-engine" else words.NO_CONTROL


def _cannot(seen: Seen, inner: int) -> list[Line]:
    return words.told(_why(seen), inner)


def _facts(frame: Frame, seen: Seen, inner: int) -> list[Line]:
    server, facts = seen.server, seen.server.facts
    engines, newest = server.engines, server.looks.newest

    def row(name: str, value: str, why: str = "") -> Line:
        known = value or figures.NOT_MEASURED
        return choice.fact(name, known, inner, "value" if value else "dim", "" if value else why, 16)

    models = list(dict.fromkeys(engine.model for engine in engines if engine.model))
    capacity = seen.gauge("kv_capacity")
    out = [
        row("server", seen.title),
        row("version", clean(server.version or facts.get("version", "")), f"{seen.title} does not tell it here"),
        row("page", clean(server.url)),
        row("models", ", ".join(clean(model) for model in models), "its page names none"),
        row("KV memory", f"{capacity:,.0f} tokens" if capacity else "", seen.why("kv_capacity", "control")),
    ]
    for name in (*_NAMES, *(name for name in facts if name not in _NAMES and name != "process_start")):
        if name == "version":
            continue
        if facts.get(name) or name in ("block_size", "kv_dtype"):
            out.append(row(_NAMES.get(name, name.replace("_", " ")), _fact(facts.get(name, "")), "not told"))
    if len(engines) > 1:
        out.append(row("engines", f"{len(engines):,}: " + ", ".join(name_of(engine, engines) for engine in engines)))
    if newest is not None:
        took = f"{figures.seconds(newest.took)} a look" if newest.reading is not None else ""
        out.append(row("the last took", took, clean(newest.failed) or "it failed"))
    out.append(
        row("restarts seen", f"{len(server.restarts):,}" if seen.reading is not None else "", words.unread(server))
    )
    if server.restarts:
        out.append(row("the last", f"{figures.seconds(server.now - server.restarts[-1])} ago"))
    told = [(view, figures.plural(view.heard, "message")) for view in server.kv]
    out += [row("KV events", f"{clean(view.endpoint)}, {view.phase}, {heard}") for view, heard in told]
    return out


def _fact(text: str) -> str:
    """A large number is told with its commas."""
    return f"{int(text):,}" if text.isdecimal() else clean(text)
