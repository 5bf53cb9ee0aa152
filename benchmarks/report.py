"""What a comparison found: tables of ratios, the aims, profiles, JSON and a plot."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.aims import Aim, aims
from benchmarks.figures import Rounds, Spread, rate, ratio, seconds, spread, token_seconds
from benchmarks.messages import Facts, Run
from benchmarks.options import Options
from engine.threads import physical_cores

_FONT_FROM_THE_NET = re.compile(r',\s*url\("https?://[^"]*"\)\s*format\("[^"]*"\)')


class Results:
    """Filled while a comparison runs; whole at any moment."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.facts: Facts | None = None
        self.works: dict[str, Rounds] = {}
        self.failed: dict[str, dict[str, str]] = {}  # by work and participant: why
        self.peak_bytes: int | None = None
        self.begun = time.time()

    @property
    def aims(self) -> list[Aim]:
        """Of works at full size alone."""
        if self.facts is None or self.options.scale != 1.0:
            return []
        return aims(self.works, self.options.servers, self.options.settings, self.facts, self.peak_bytes)

    def show(self, console: Console) -> None:
        """Print all there is."""
        for work, rounds in self.works.items():
            if any(rounds):
                console.print(self._table(work, rounds))
                if self.options.profile:
                    console.print(profile_table(work, rounds))
        if self.aims:
            console.print(aims_table(self.aims))
        for work, reasons in self.failed.items():
            for name, reason in reasons.items():
                console.print(f"{work}: {name} is missing: {reason}", highlight=False, markup=False)
        plot = self._plot(min(console.width, 100))
        if plot:
            console.print(plot)

    def write_json(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")

    def write_plot(self, path: Path) -> None:
        """As text, or as a picture of that text."""
        plot = self._plot(100)
        if path.suffix == ".txt":
            path.write_text(plot.plain)
            return
        write_svg(plot, path, "benchmarks.compare")

    def as_json(self) -> dict[str, Any]:
        options = self.options
        return {
            "begun_unix": self.begun,
            "machine": machine(),
            "settings": msgspec.to_builtins(options.settings),
            "facts": msgspec.to_builtins(self.facts),
            "repeats": options.repeats,
            "scale": options.scale,
            "seed": options.seed,
            "streamed": options.stream,
            "servers": options.servers,
            "works": {
                work: {
                    "rounds": msgspec.to_builtins(rounds),
                    "to_offline": {
                        name: msgspec.to_builtins(ratio(rounds, name, "offline", rate)) for name in names_in(rounds)
                    },
                    "failed": self.failed.get(work, {}),
                }
                for work, rounds in self.works.items()
            },
            "peak_memory_bytes": self.peak_bytes,
            "aims": [{**msgspec.to_builtins(aim), "met": aim.met} for aim in self.aims],
        }

    def _table(self, work: str, rounds: Rounds) -> Table:
        alone = any(spread(rounds, name, token_seconds) for name in names_in(rounds))
        title = f"{work}, {len(rounds)} round{'s' * (len(rounds) != 1)}: median (least..most), output tokens/s"
        table = Table(title=title, title_justify="left")
        table.add_column("", no_wrap=True)
        for heading in ("seconds", "tokens/s", *(["ms per token"] if alone else []), "to offline"):
            table.add_column(heading, justify="right")
        table.add_column("")
        for name in names_in(rounds):
            cells = [name, shown(spread(rounds, name, seconds)), shown(spread(rounds, name, rate))]
            if alone:
                cells.append(shown(spread(rounds, name, _token_ms)))
            notes = {done[name].note for done in rounds if name in done}
            table.add_row(*cells, shown(ratio(rounds, name, "offline", rate)), ", ".join(sorted(filter(None, notes))))
        return table

    def _plot(self, width: int) -> Text:
        """Output tokens/s of everyone, a chart for each work; empty where nothing was measured."""
        import plotext

        whole = Text()
        for work, rounds in self.works.items():
            found = {name: spread(rounds, name, rate) for name in names_in(rounds)}
            medians = {name: one.median for name, one in found.items() if one is not None}
            if not medians:
                continue
            plotext.clear_figure()
            plotext.theme("clear")
            plotext.simple_bar(list(medians), list(medians.values()), width=width, title=f"{work}: output tokens/s")
            whole.append_text(Text.from_ansi(plotext.build()))
            whole.append("\n")
            plotext.clear_figure()
        return whole


def names_in(rounds: Rounds) -> tuple[str, ...]:
    """Whoever did something, in order."""
    return tuple(dict.fromkeys(name for done in rounds for name in done))


def shown(value: Spread | None) -> str:
    """A median, and between what it lies where there were several rounds."""
    if value is None:
        return "—"
    text = _number(value.median)
    return text if value.rounds == 1 else f"{text} ({_number(value.least)}..{_number(value.most)})"


def _number(value: float) -> str:
    """Three digits, or as many as there are before the point."""
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def aims_table(found: list[Aim]) -> Table:
    table = Table(title="aims, judged by the median", title_justify="left")
    for heading in ("work", "aim", "wanted", "measured", "met"):
        table.add_column(heading, justify="right" if heading in ("wanted", "measured") else "left")
    for aim in found:
        wanted = f"{aim.sense} {_number(aim.wanted)} {aim.unit}".rstrip()
        met = {True: "yes", False: "no", None: "not measured"}[aim.met]
        table.add_row(aim.work, aim.text, wanted, shown(aim.measured), met)
    return table


def profile_table(work: str, rounds: Rounds) -> Table:
    """Where the time of the offline engine's steps went, summed over the rounds, beside the floor's products."""
    durations, parts, floor = (_sums(rounds, *pick) for pick in _PICKS)
    whole = sum(durations.values())
    steps = sum(shape.count for done in rounds if "offline" in done for shape in done["offline"].schedule)
    title = f"{work}: where the time of {steps:,} steps went (offline)"
    if not parts:
        title += "; this decoder does not measure the forward's parts"
    table = Table(title=title, title_justify="left")
    for heading in ("", "seconds", "share", "ms a step", "floor", "floor / engine"):
        table.add_column(heading, justify="right" if heading else "left")

    def row(name: str, spent: float, least: float | None) -> None:
        bound = "" if least is None else f"{least:.2f}"
        share = "" if not least or not spent else f"{least / spent:.2f}"
        table.add_row(name, f"{spent:.2f}", f"{100 * spent / whole:.1f} %", f"{spent / steps * 1e3:.2f}", bound, share)

    for name, spent in durations.items() if steps and whole else ():
        row(name, spent, sum(floor.values()) if name == "forward" and floor else None)
        for part, took in parts.items() if name == "forward" else ():
            row(f"  {part}", took, floor.get(part))
        if name == "forward" and parts:
            row("  host", spent - sum(parts.values()), None)
        elif name == "forward":
            for part in floor:
                table.add_row(f"  {part}", "", "", "", f"{floor[part]:.2f}", "")
    return table


_PICKS: tuple[tuple[str, str], ...] = (("offline", "durations"), ("offline", "parts"), ("floor", "parts"))


def _sums(rounds: Rounds, name: str, field: str) -> dict[str, float]:
    """Of the rounds that both the engine and, if it is there at all, the floor did."""
    total: Counter[str] = Counter()
    needs_floor = any("floor" in done for done in rounds)
    for done in rounds:
        if name in done and (not needs_floor or "floor" in done):
            total.update(getattr(done[name], field))
    return dict(total)


def _token_ms(run: Run) -> float | None:
    return None if run.token_seconds is None else run.token_seconds * 1e3


def write_svg(text: Text, path: Path, title: str) -> None:
    """A picture of styled text, without the fonts that rich would have a browser fetch."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=102, file=nowhere)
        console.print(text)
    path.write_text(_FONT_FROM_THE_NET.sub("", console.export_svg(title=title)))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    names: Iterator[str] = iter(())
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": next(names, platform.processor()),
        "cores": physical_cores(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "transformers", "numba")},
    }
