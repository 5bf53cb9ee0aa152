"""Pages of servers' metrics, written by hand after their names, with numbers that can be added by hand."""

from __future__ import annotations

from pathlib import Path

from servers.reading import Reading, read

FOLDER = Path(__file__).parents[1] / "data" / "server_metrics"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.txt")))


def pages(name: str) -> tuple[str, str]:
    """One, and one of some time later."""
    first, later = (FOLDER / f"{name}.txt").read_text().split("=== later\n")
    return first, later


def looks(name: str) -> tuple[Reading, Reading]:
    first, later = map(known, pages(name))
    return first, later


def known(text: str) -> Reading:
    reading = read(text)
    assert reading is not None
    return reading
