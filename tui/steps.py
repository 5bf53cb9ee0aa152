"""The batch timeline: what each step did, request by request, as far back as memory allows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, overload

import msgspec

from engine.protocol import Copy, Durations, Parts, RowKind
from tui.lanes import End

MAX_CELLS = 1_000_000  # requests' parts of steps that are kept
STEP_COST = 64  # a step with fewer counts as so many

T = TypeVar("T")


class Cell(msgspec.Struct, frozen=True, gc=False):
    """One request's part of one step, as the batch timeline shows it. The steps of a request share theirs."""

    request: str
    kind: RowKind
    hue: int
    end: End = ""


class Cells(Mapping[int, Cell]):
    """The cells of one step by lane, ascending, as a frozen mapping: eight bytes each."""

    __slots__ = ("_row",)

    def __init__(self, row: tuple[Cell | None, ...]) -> None:
        """`row`: by lane; None where nobody was."""
        self._row = row

    def __getitem__(self, lane: int) -> Cell:
        cell = self._row[lane] if 0 <= lane < len(self._row) else None
        if cell is None:
            raise KeyError(lane)
        return cell

    @overload
    def get(self, lane: int, /) -> Cell | None: ...
    @overload
    def get(self, lane: int, default: Cell | T, /) -> Cell | T: ...
    def get(self, lane: int, default: Any = None, /) -> Any:
        cell = self._row[lane] if 0 <= lane < len(self._row) else None
        return default if cell is None else cell

    def __iter__(self) -> Iterator[int]:
        return (lane for lane, cell in enumerate(self._row) if cell is not None)

    def __len__(self) -> int:
        return len(self._row) - self._row.count(None)

    @property
    def lanes(self) -> int:
        """The highest lane and one: how many there are to show."""
        return len(self._row)

    def marked(self, ends: Iterable[tuple[str, int, End]]) -> Cells:
        """The same with the ends of those requests that are in their lanes and have none; itself where none are."""
        row = list(self._row)
        changed = False
        for request, lane, end in ends:
            cell = self.get(lane)
            if cell is not None and cell.request == request and not cell.end:
                row[lane] = Cell(cell.request, cell.kind, cell.hue, end)
                changed = True
        return Cells(tuple(row)) if changed else self


@dataclass(frozen=True, slots=True)
class Step:
    """One column of the batch timeline. `cells` are by lane.

    `switched`: a control was, since the step before; `missing` records were lost since then.
    """

    seq: int
    time: float
    cells: Cells
    tokens: int
    budget: int
    switched: bool
    durations: Durations
    copies: tuple[Copy, ...] = ()
    missing: int = 0
    parts: Parts | None = None


class Steps:
    """The last steps, oldest first: as many as `MAX_CELLS` cells allow."""

    def __init__(self) -> None:
        self.kept: list[Step] = []
        self._cost = 0
        self._before: dict[int, list[tuple[int, Step]]] = {}  # by step: (who marked it, what it was before)

    def add(self, step: Step) -> None:
        self.kept.append(step)
        self._cost += _cost(step)
        if self._cost > MAX_CELLS * 1.1:
            cut = 0
            while self._cost > MAX_CELLS and cut < len(self.kept) - 1:
                step = self.kept[cut]
                self._cost -= _cost(step) * (1 + len(self._before.pop(step.seq, ())))
                cut += 1
            del self.kept[:cut]

    def mark(self, ends: Iterable[tuple[str, int, End]], seq: int) -> None:
        """Record `seq` tells who left after the last step, of which lane and how: the marks go on that step."""
        step = self.kept[-1] if self.kept else None
        if step is None:
            return
        marked = step.cells.marked(ends)
        if marked is not step.cells:
            self._before.setdefault(step.seq, []).append((seq, step))
            self._cost += _cost(step)
            self.kept[-1] = replace(step, cells=marked)

    def until(self, seq: int, count: int) -> tuple[Step, ...]:
        """The last `count` steps up to record `seq`, without what later records told of them."""
        index = bisect_right(self.kept, seq, key=lambda step: step.seq)
        steps = self.kept[max(0, index - count) : index]
        for later, before in self._before.get(steps[-1].seq, ()) if steps else ():
            if later > seq:
                steps[-1] = before
                break
        return tuple(steps)


def _cost(step: Step) -> int:
    return max(STEP_COST, step.cells.lanes)
