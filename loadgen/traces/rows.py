"""What the two formats of comma-separated values share: columns found by their names, and cells that are numbers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

_WHOLE = re.compile(r"[0-9]{1,15}")
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?")


def cells(record: bytes) -> list[str]:
    """A line's cells. Raises `ValueError`."""
    text = record.decode()
    if '"' not in text:
        return [cell.strip() for cell in text.split(",")]
    try:
        (row,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        raise ValueError(f"not a line of comma-separated values: {error}") from None
    return [cell.strip() for cell in row]


class Columns:
    """Where each column is, by the first line of the file."""

    def __init__(self, head: bytes, needed: Sequence[str], allowed: Sequence[str]) -> None:
        """Raises `ValueError` for a column that is missing, unknown or there twice."""
        self.names = cells(head)
        for name in needed:
            if name not in self.names:
                raise ValueError(f"no column {name}; needed are {', '.join(needed)}")
        for name in self.names:
            if name not in (*needed, *allowed):
                raise ValueError(f"{name}: unknown column; allowed are {', '.join((*needed, *allowed))}")
            if self.names.count(name) > 1:
                raise ValueError(f"{name}: a column that is there twice")

    def row(self, record: bytes) -> dict[str, str]:
        """A line's cells by column. Raises `ValueError` unless it has as many as there are columns."""
        found = cells(record)
        if len(found) != len(self.names):
            raise ValueError(f"must have {len(self.names)} cells, one for each column, got {len(found)}")
        return dict(zip(self.names, found, strict=True))


def line_of(*values: str | int | float) -> bytes:
    """A line of cells, with its end. Raises `ValueError` for a text with a line end in it."""
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="").writerow(values)
    if any(end in file.getvalue() for end in "\r\n"):
        raise ValueError(f"a cell cannot hold a line end: {values!r}")
    return file.getvalue().encode() + b"\n"


def whole(row: dict[str, str], name: str, least: int = 1, most: int = 10_000_000) -> int:
    """A cell that is a whole number. Raises `ValueError` naming the column."""
    if not _WHOLE.fullmatch(row[name]) or not least <= int(row[name]) <= most:
        raise ValueError(f"{name}: expected a whole number from {least} to {most}, got {row[name]!r}")
    return int(row[name])


def number(row: dict[str, str], name: str) -> float:
    """A cell that is a number, at least 0. Raises `ValueError` naming the column."""
    if not _NUMBER.fullmatch(row[name]):
        raise ValueError(f"{name}: expected a number from 0 on, got {row[name]!r}")
    return float(row[name])
