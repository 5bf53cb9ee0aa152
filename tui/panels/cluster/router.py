"""The router: how many decisions, how long each takes, and what they followed."""

from __future__ import annotations

from engine.cluster.protocol import RouterState
from tui import figures
from tui.cluster.controls import reads
from tui.cluster.view import ClusterView
from tui.commands import Key, Reaction
from tui.look import Look
from tui.panels.cluster import steering
from tui.panels.line import Line, box, join
from tui.view import Frame

KEYS: tuple[Key, ...] = ()
_CELL = 36  # cells of a figure with its name
_MEANING = {
    "decisions": "choices of a worker: up to three for a request that is handed over, of whom decodes it, of whom "
    "prefills it, and once more of whom decodes it",
    "mean": "seconds that one decision took, on average",
    "by prefix": "went where most of their prompt is cached",
    "bounded": "would have, but that worker had too much to do",
    "local": "requests prefilled where they decode, though there is a prefill pool: short, or mostly cached there; the "
    "share is of these and of those handed over",
    "handed over": "requests prefilled by one worker, to go on in another",
    "recovered": "requests that went on elsewhere, after a death, a drain or an overdue transfer",
    "imbalance": "of the tokens sent to each worker that takes prompts, the most over the mean",
    "indexed": "blocks that are known to be cached somewhere",
}
answer = steering.answer


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view, front = frame.cluster, frame.focus.panel == "router"
    if view is None:
        return box("router", [], [], width, height, look.glyphs, front=front)
    inner, room = width - 2, height - 2
    parts = _figures(view)
    beside = max(1, inner // _CELL)
    if -(-len(parts) // beside) > room:
        body = _packed(parts, inner, room)
    else:
        cells = [_cell(name, value, more, inner // beside) for name, value, more in parts]
        body = [[span for cell in cells[at : at + beside] for span in cell] for at in range(0, len(cells), beside)]
    routing = reads("routing", view.control.routing)
    right: Line = [] if frame.status.fixed or width < 60 else [("o another routing", "dim")]
    return box(f"router, by {routing}", right, body[:room], width, height, look.glyphs, front=front)


def mean(router: RouterState) -> str:
    """Of a decision, in microseconds; a dash before the first."""
    if not router.decisions:
        return figures.NOT_MEASURED
    return f"{router.decision_seconds / router.decisions * 1e6:,.0f} µs"


def _figures(view: ClusterView) -> list[tuple[str, str, str]]:
    """Names, values, and what they are of all decisions, or of all requests that may be handed over."""
    router = view.state.router
    apart = router.local + router.handed_over  # requests that could be either: decisions are more of the same ones

    def share(count: int, whole: int) -> str:
        return figures.percent(figures.ratio(count, whole)) if whole else ""

    rate = view.decisions_rate()
    return [
        ("decisions", figures.count(router.decisions), f"{rate:.1f}/s" if rate is not None else ""),
        ("mean", mean(router), ""),
        ("by prefix", figures.count(router.by_prefix), share(router.by_prefix, router.decisions)),
        ("bounded", figures.count(router.bounded), share(router.bounded, router.decisions)),
        ("local", figures.count(router.local), share(router.local, apart)),
        ("handed over", figures.count(router.handed_over), share(router.handed_over, apart)),
        ("imbalance", f"{router.imbalance:.2f}" if router.imbalance is not None else figures.NOT_MEASURED, ""),
        ("indexed", f"{router.indexed_blocks:,} blocks", ""),
        ("recovered", figures.count(router.recovered), ""),
    ]


def _cell(name: str, value: str, more: str, width: int) -> Line:
    line: Line = [(f" {name:<12}", "dim"), (f"{value:>10}", "value"), (f"  {more}", "dim")]
    used = sum(len(text) for text, _ in line)
    return [*line, (" " * max(0, width - used), "text")]


def _packed(parts: list[tuple[str, str, str]], inner: int, room: int) -> list[Line]:
    """As many as fit, in the order of what they tell."""
    order = ("decisions", "mean", "by prefix", "imbalance", "bounded", "local", "handed over", "indexed", "recovered")
    known = {name: (value, more) for name, value, more in parts}
    left, out = list(order), []
    for _ in range(room):
        line: Line = []
        while left:
            value, more = known[left[0]]
            share = f" {more}" if more.endswith("%") else ""
            part: Line = [(f"{left[0]} ", "dim"), (value, "value"), (share, "dim")]
            longer = join([*([line] if line else []), part], ("  ", "text"), inner - 2)
            if len(longer) <= len(line):
                break
            line = longer
            del left[0]
        out.append([(" ", "text"), *line])
    return out


def detail(frame: Frame, inner: int, look: Look) -> tuple[str, list[Line]]:
    """What each figure means."""
    from textwrap import wrap

    known = {name: value for name, value, _ in _figures(frame.cluster)} if frame.cluster is not None else {}
    lines: list[Line] = []
    for name, meaning in _MEANING.items():
        lines.append([(f" {name}", "title"), (f"  {known.get(name, figures.NOT_MEASURED)}", "value")])
        lines += [[(f"   {text}", "dim")] for text in wrap(meaning, inner - 4)]
    return "router", lines


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    return frame.focus.but(inspecting=True) if key == "enter" else None
