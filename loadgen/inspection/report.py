"""What `loadgen inspect` prints: tables and plots of one trace, or of several side by side as many as fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from loadgen.inspection.inspecting import Inspection
from loadgen.inspection.plots import draw
from loadgen.inspection.tables import Section, length_columns, length_rows, sections

LABEL = 38  # columns of a row's name, with the borders
CELL = 18  # of a figure, without
WIDE = 120  # columns with room for every statistic
MOST_PLOT = 110
TWO_PLOTS = 140


def names_of(inspections: Sequence[Inspection]) -> list[str]:
    """File names, whole paths where two are the same."""
    names = [Path(inspection.file).name for inspection in inspections]
    return names if len(set(names)) == len(names) else [inspection.file for inspection in inspections]


def print_report(inspections: Sequence[Inspection], console: Console, plots: bool) -> None:
    """Tables, plots and notes, in groups of as many traces as fit beside each other."""
    names = names_of(inspections)
    together = max(1, (console.width - LABEL) // (CELL + 3))
    for at in range(0, len(inspections), together):
        _print_group(inspections[at : at + together], names[at : at + together], console, plots)
    for inspection, name in zip(inspections, names, strict=True):
        _print_notes(inspection, name, console)


def _print_group(inspections: Sequence[Inspection], names: Sequence[str], console: Console, plots: bool) -> None:
    for section in sections(inspections):
        console.print(_table(section, names))
    console.print(_lengths(inspections, names, console.width >= WIDE))
    if plots:
        two = console.width >= TWO_PLOTS
        width = console.width // 2 if two else min(console.width, MOST_PLOT)
        pictures = list(draw(inspections, names, width, console.is_terminal))
        for at in range(0, len(pictures), 2 if two else 1):
            grid = Table.grid()
            grid.add_row(*pictures[at : at + (2 if two else 1)])
            console.print(grid)


def _table(section: Section, names: Sequence[str]) -> Table:
    table = Table(
        title=section.title,
        title_justify="left",
        caption=section.caption or None,
        caption_justify="left",
        show_header=len(names) > 1 or section.title == "Trace",
    )
    table.add_column("")
    for name in names:
        width = CELL if len(names) > 1 else None
        table.add_column(name, justify="right", overflow="fold", min_width=width, max_width=width)
    for row in section.rows:
        table.add_row(*row)
    return table


def _lengths(inspections: Sequence[Inspection], names: Sequence[str], wide: bool) -> Table:
    columns = length_columns(wide)
    caption = "Percentiles are to 0.05 %."
    if any(inspection.statistics.lengths.estimated_inputs for inspection in inspections):
        caption += " ~: estimated, texts at 4 bytes per token; prompts with history, without a chat template's marks."
    table = Table(
        title="Lengths in tokens",
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in length_rows(inspections, columns, names):
        table.add_row(*row)
    return table


def _print_notes(inspection: Inspection, name: str, console: Console) -> None:
    def note(text: str) -> None:
        console.print(f"{name}: {text}", markup=False, highlight=False)

    statistics = inspection.statistics
    if not inspection.whole:
        read = f"{inspection.bytes_read / 1e6:,.1f} of {inspection.size / 1e6:,.1f} MB"
        note(f"only the first {statistics.sessions.sessions:,} sessions ({read}).")
    if inspection.bad_lines:
        note(f"{inspection.bad_lines:,} bad lines were skipped, first:")
        for line in inspection.first_bad_lines:
            console.print(f"  {line}", markup=False, highlight=False)
    if statistics.arrivals is None:
        note("has no times; it is played with --arrivals, such as poisson:4 or users:8.")
    if any(hit.standard_error for hit in statistics.sharing.hits):
        note("more different prompts than are kept: what is found is estimated by a sample; ± is two standard errors.")
