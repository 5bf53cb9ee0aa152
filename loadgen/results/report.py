"""What a run measured, for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from loadgen.results.class_tables import class_table
from loadgen.results.cluster_tables import cluster_tables
from loadgen.results.document import AS_THE_RUN, Asked, Document, Measured, measure, merged
from loadgen.results.run_file import RunFile
from loadgen.results.server_tables import agreement_table, engines_table, server_latency_table, server_table
from loadgen.results.tables import (
    FEWER_STATISTICS,
    STATISTICS,
    Table,
    engine_table,
    failure_table,
    goodput_table,
    latency_table,
    outcome_table,
    run_table,
    side_by_side,
)

WIDE = 100  # columns of a terminal that has room for all statistics; the JSON has them anyway
TWO_COLUMNS = 150  # that has room for two tables or plots beside each other
WIDEST_PLOT = 110
BETWEEN = 4  # columns between two tables
LEAST_NAMES = 24  # columns that are left to the names of rows, when they are folded for the figures to be in one table


def print_report(runs: Sequence[RunFile], console: Console, plots: bool, asked: Asked = AS_THE_RUN) -> None:
    """Tables, plots and notes of one run, or of repeats as one. Raises as `document.measure`."""
    print_measured([measure(run, asked) for run in runs], console, plots)


def print_measured(runs: Sequence[Measured], console: Console, plots: bool) -> None:
    """The same, of what was read already."""
    document = merged(runs)
    print_warnings(document, console)
    console.print(rich_table(run_table(document)))
    left = [outcome_table(document), failure_table(document), goodput_table(document), agreement_table(document)]
    _print_beside(left, [engine_table(document), server_table(document)], console)
    statistics = STATISTICS if console.width >= WIDE else FEWER_STATISTICS
    console.print(rich_table(latency_table(document, statistics)))
    for table in (class_table(document), *cluster_tables(document)):
        if table is not None:
            _print_all(fitting(table, console), console, 1)
    for of_server in (server_latency_table(document), engines_table(document)):
        if of_server is not None:
            console.print(rich_table(of_server))
    if plots and len(runs) == 1:
        from loadgen.results.plots import draw

        two = console.width >= TWO_COLUMNS
        width = min(console.width // 2 - 1 if two else console.width, WIDEST_PLOT)
        pictures: list[RenderableType] = list(draw(runs[0], width, console.is_terminal))
        _print_all(pictures, console, 2 if two else 1)
    elif plots and len(runs) > 1:
        console.print("Plots over time are of single runs: see the report of each file.", highlight=False)
    print_notes(document, console)


def print_warnings(document: Document, console: Console, side: str = "") -> None:
    """What may make the figures wrong; `side` begins each."""
    _say((f"Warning: {warning}" for warning in document["warnings"]), console, "bold yellow", side)


def print_notes(document: Document, console: Console, side: str = "") -> None:
    """What a reader must know beside the figures; `side` begins each."""
    _say((note if note.startswith("First '") else f"Note: {note}" for note in document["notes"]), console, side=side)


def print_side_by_side(
    documents: Sequence[Document], names: Sequence[str], console: Console, ratio: bool = False
) -> None:
    """Runs that are no repeats, a column each, with the warnings and notes of each; with `ratio` that of two."""
    for name, document in zip(names, documents, strict=True):
        print_warnings(document, console, f"{name}: ")
    for table in fitting(side_by_side(documents, names, ratio), console):
        console.print(table)
    for name, document in zip(names, documents, strict=True):
        print_notes(document, console, f"{name}: ")


def _say(lines: Iterable[str], console: Console, style: str | None = None, side: str = "") -> None:
    for line in lines:
        console.print(f"{side}{line}", markup=False, highlight=False, style=style)


def rich_table(table: Table, names: int | None = None) -> RichTable:
    """A table of text as the terminal's; with `names` the names of rows are folded into so many columns."""
    drawn = RichTable(
        title=table.title,
        title_justify="left",
        show_header=bool(table.columns),
        caption="\n".join((*table.caption, "")) if table.caption else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD if table.columns else box.SIMPLE,
    )
    for number in range(max(map(len, table.rows), default=1)):
        name = table.columns[number] if table.columns else ""
        if number == 0 or table.prose:
            whole = number == 0 and bool(table.columns) and names is None
            drawn.add_column(name, overflow="fold", no_wrap=whole, width=names if number == 0 else None)
        else:
            drawn.add_column(name, justify="right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn


def fitting(table: Table, console: Console, least_names: int = LEAST_NAMES) -> list[RichTable]:
    """The table, its columns of figures in as few parts as the terminal's width allows.

    For that the names of rows are folded, to no less than `least_names` columns.
    """
    figures = len(table.columns) - 1
    for most in range(figures, 0, -1):
        parts = [table.part(at, at + most) for at in range(0, figures, most)]
        names = min(console.width - _width(part) + part.widths[0] for part in parts)
        if names >= table.widths[0] or (most == 1 and names < least_names):
            return [rich_table(part) for part in parts]
        if names >= least_names and not table.prose:
            return [rich_table(part, names) for part in parts]
    return [rich_table(table)]


def _width(table: Table) -> int:
    return sum(table.widths) + 3 * len(table.widths) + 1  # a letter of room on either side, and one between cells


def _print_beside(left: Sequence[Table | None], right: Sequence[Table | None], console: Console) -> None:
    """Two stacks of tables, beside each other where there is room."""
    tables = [[table for table in stack if table is not None] for stack in (left, right)]
    both = sum(max((_width(table) for table in stack), default=0) for stack in tables)
    stacks = [[part for table in stack for part in fitting(table, console)] for stack in tables]
    if console.width < TWO_COLUMNS or not all(stacks) or both + BETWEEN > console.width:
        _print_all([table for stack in stacks for table in stack], console, 1)
        return
    grid = RichTable.grid(padding=(0, BETWEEN))
    cells = [RichTable.grid(), RichTable.grid()]
    for cell, stack in zip(cells, stacks, strict=True):
        for table in stack:
            cell.add_row(table)
    grid.add_row(*cells)
    console.print(grid)


def _print_all(items: Sequence[RenderableType], console: Console, beside: int) -> None:
    for at in range(0, len(items), beside):
        grid = RichTable.grid(padding=(0, 1))
        grid.add_row(*items[at : at + beside])
        console.print(grid)
