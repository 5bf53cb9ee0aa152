"""What runs and what waits, now and over time, and what is told of each step: never who was in a batch."""

from __future__ import annotations

from collections.abc import Sequence

from tui import figures
from tui.commands import Key, Reaction, Say
from tui.look import Look
from tui.panels.line import Line, join, length
from tui.panels.server import choice, plots, slots, words
from tui.panels.server.seen import Seen, name_of
from tui.view import Frame

KEYS = (
    Key("up down", "of llama.cpp: select a slot"),
    Key("enter", "of llama.cpp: all that is told of the slot"),
    *choice.KEYS,
)
detail = slots.detail
_LARGE = plots.FRAME_ROWS + 3  # rows of a chart with a scale, at least
_NARROW = 48  # cells, under which words are few


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    seen, inner, rows = Seen.of(frame), width - 2, height - 2
    body, below = _about(seen, inner, rows)
    room = rows - len(body) - len(below)
    if count := _slot_rows(seen, room):
        body += slots.lines(seen, frame.focus.server, inner, count, look)
        room = rows - len(body) - len(below)
    if seen.several and seen.engine is None and room >= _LARGE + 2:
        body += _engines(seen, inner, room - _LARGE)
        room = rows - len(body) - len(below)
    body += _charts(seen, inner, room, look)
    body += [[]] * (rows - len(body) - len(below))
    return choice.bordered("batch", "batch", frame, seen, [*body, *below], width, height, look, rates=True)


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    if (common := choice.press(frame, key)) is not None:
        return common
    if (walked := slots.press(frame, key, max(1, height - 4))) is not None:
        return walked
    return Say(words.NO_BATCH) if key in ("left", "right", "enter") else None


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    return slots.press(frame, "up" if up else "down", max(1, height - 4))


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A click selects a slot of llama.cpp; again, it opens the inspector."""
    seen, rows = Seen.of(frame), height - 2
    body, below = _about(seen, width - 2, rows)
    return slots.point(frame, y - 1 - len(body), _slot_rows(seen, rows - len(body) - len(below)))


def _about(seen: Seen, inner: int, rows: int) -> tuple[list[Line], list[Line]]:
    """The lines at the top, and those at the bottom that say what is not told."""
    body = [_now(seen, inner)]
    steps = [*_steps(seen, inner), *_computed(seen, inner)] if rows >= 4 else []
    below = words.told(_who(seen), inner)
    below = below if rows >= 4 + len(below) else []
    return [*body, *steps[: max(0, rows - 2 - len(below))]], below


def _slot_rows(seen: Seen, room: int) -> int:
    """Of the slots and their names, if there are any and there is room."""
    if not seen.server.slots or room < 2:
        return 0
    return min(len(seen.server.slots) + 1, room if room < _LARGE + 2 else room - _LARGE)


def _who(seen: Seen) -> str:
    if seen.server.kind == "paged-engine":
        return f"who was in the batch: {words.steps(seen.steps)}"
    why = words.missing(seen.server.kind, "batch")
    return f"{words.NO_BATCH} ({why})"


def _now(seen: Seen, inner: int) -> Line:
    """Requests by what they do."""
    parts: list[Line] = []
    for term, word, role in (
        ("running", "running", "speed"),
        ("waiting", "waiting", "queue"),
        ("swapped", words.note(seen.server.kind, "swapped") or "swapped out", "waste"),
        ("held", "held, done", "held"),
    ):
        if seen.tells(term):
            parts.append([seen.count(term, role), (f" {word}", "dim")])
        elif term in ("running", "waiting"):
            parts.append([(figures.NOT_MEASURED, "dim"), (f" {word}", "dim")])
    return [(" ", "text"), *join(parts, ("  ", "text"), inner - 2)]


def _steps(seen: Seen, inner: int) -> list[Line]:
    """What the server counts of its iterations: steps, and tokens in one; nothing of what these were."""
    measures, wide = seen.measures, inner >= _NARROW
    parts: list[Line] = []
    if seen.tells("step_tokens"):
        steps = measures.count("step_tokens") if measures else None
        mean = measures.mean("step_tokens") if measures else None
        per_second = steps / measures.seconds if measures and steps and measures.seconds > 0 else None
        if steps is None:
            why = f": {seen.why('step_tokens', 'batch')}" if wide else ""
            parts.append([(f"{figures.NOT_MEASURED} steps{why}", "dim")])
        else:
            of = " of all engines" if wide and seen.several and seen.engine is None else ""
            parts.append(
                [(figures.count(steps), "value"), (f" steps{of}  ", "dim"), (plots.a_second(per_second), "text")]
            )
            shown = f"{mean:.1f}" if mean is not None and mean < 9.95 else figures.count(mean)
            parts.append([(shown, "value"), (f" tokens a step{', mean' if wide else ''}", "dim")])
    elif seen.tells("steps"):
        grown = measures.growth.get("steps") if measures else None
        rate = plots.a_second(seen.rate("steps"))
        parts.append([(figures.count(grown), "value"), (" steps  ", "dim"), (rate, "text")])
    if seen.tells("step_time"):
        mean = measures.mean("step_time") if measures else None
        parts.append([(figures.seconds(mean), "value"), (" a step, mean", "dim")])
    if not parts:
        return words.told(f"{figures.NOT_MEASURED} steps: {seen.why('steps')}", inner)
    return _over(parts, inner)


def _over(parts: Sequence[Line], inner: int) -> list[Line]:
    """On one line, or where that is too short for all on as many as they need."""
    out: list[Line] = []
    for part in parts:
        if out and length(out[-1]) + 2 + length(part) < inner:
            out[-1] = [*out[-1], ("  ", "text"), *part]
        else:
            out.append([(" ", "text"), *part])
    return out


def _computed(seen: Seen, inner: int) -> list[Line]:
    """What was computed in the window, where the server counts that as it happens: of no single step."""
    if not (seen.tells("computed_prompt_tokens") and seen.tells("live_generation_tokens")):
        return []
    computed, cached = plots.a_second(seen.rate("computed_prompt_tokens")), seen.tells("cached_prompt_tokens")
    if inner < _NARROW:
        out: list[Line] = [[(f" {computed}", "prefill-speed"), (" prompts computed", "dim")]]
        found = plots.a_second(seen.rate("cached_prompt_tokens"))
        return [*out, [(f" {found}", "shared"), (" from the cache", "dim")]] if cached else out
    parts: list[Line] = [
        [
            ("computed ", "dim"),
            (computed, "prefill-speed"),
            (" of prompts", "dim"),
        ],
        [(plots.a_second(seen.rate("live_generation_tokens")), "speed"), (" of answers", "dim")],
    ]
    if cached:
        parts.append([("from the cache ", "dim"), (plots.a_second(seen.rate("cached_prompt_tokens")), "shared")])
    return [[(" ", "text"), *join(parts, (", ", "dim"), inner - 2)]]


def _engines(seen: Seen, inner: int, most: int) -> list[Line]:
    """Each engine's requests."""
    engines = seen.server.engines
    running, waiting = seen.gauges("running"), seen.gauges("waiting")
    out: list[Line] = []
    for engine in engines[:most]:
        pair = (running.get(engine), waiting.get(engine))
        name = name_of(engine, engines)[: max(8, inner - 34)]
        out.append(
            [
                (f" {name:<{min(24, max(8, inner - 34))}} ", "dim"),
                (f"{figures.count(pair[0]):>6}", seen.role("speed")),
                (" running ", "dim"),
                (f"{figures.count(pair[1]):>6}", seen.role("queue")),
                (" waiting", "dim"),
            ]
        )
    if len(engines) > most and out:
        out[-1] = [(f" and {len(engines) - most + 1:,} engines more: v shows each", "dim")]
    return out


def _charts(seen: Seen, inner: int, room: int, look: Look) -> list[Line]:
    """Running and waiting over time, large where there is room."""
    charts = [chart for chart in (plots.RUNNING, plots.WAITING) if chart.told(seen)]
    if not charts or room < 1:
        return []
    if room >= _LARGE:
        return plots.large(seen, charts, inner - 1, room, look)
    return [plots.listed(seen, chart, False, inner, 8, look) for chart in charts][:room]
