"""How a long reading is shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from loadgen.inspection import progress
from loadgen.inspection.inspecting import Reading
from loadgen.inspection.progress import ReadingProgress, reading_line

HALF = Reading(bytes_read=2_500_000_000, size=5_000_000_000, seconds=50.0, requests=9_000_000)


def test_a_line_tells_share_rate_and_what_is_left() -> None:
    line = "a.jsonl: 2,500 of 5,000 MB (50%), 9,000,000 requests, 50.0 MB/s, 0:50 left"
    assert reading_line("a.jsonl", HALF) == line
    slow = Reading(bytes_read=1_000_000, size=201_000_000, seconds=1.0, requests=1)
    assert reading_line("a", slow).endswith("1.0 MB/s, 3:20 left")
    assert reading_line("a", Reading(0, 0, 0.0, 0)) == "a: 0 of 0 MB (100%), 0 requests, 0.0 MB/s"


def shown(terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=terminal, color_system=None)
    with ReadingProgress("a.jsonl", console) as shows:
        shows.update(HALF)
        shows.update(HALF)
    return file.getvalue()


def test_nothing_is_shown_of_a_short_reading() -> None:
    assert shown(terminal=True) == shown(terminal=False) == ""


def test_lines_come_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    assert shown(terminal=False) == 2 * (reading_line("a.jsonl", HALF) + "\n")


def test_a_bar_on_a_terminal_goes_away_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER", 0.0)
    text = shown(terminal=True)
    assert "━" in text
    assert "50.0 MB/s" in text
    assert text.rstrip().endswith("\x1b[2K")
