"""What a fleet costs is measured of the real program, over servers in a process of their own."""

from __future__ import annotations

import asyncio
import json

from benchmarks import fleet
from benchmarks.fleet import Found, Looks, looks_at, stand_ins, table
from benchmarks.screen import Cost


def test_a_server_that_hangs_is_not_counted_and_the_others_are_looked_at(monkeypatch):
    monkeypatch.setattr(fleet, "FIND_SECONDS", 1.5)
    with stand_ins(3, hanging=1) as urls:
        looks = asyncio.run(looks_at(urls, 1, 3.2))
    assert len(urls) == 3
    assert looks.servers == 2
    assert looks.fewest >= 2
    assert 0 < looks.median <= looks.longest


def test_the_table_and_the_file_have_what_was_measured(monkeypatch, tmp_path, capsys):
    asked = []

    def measured(servers, hanging, seconds, folder):
        asked.append((servers, hanging, seconds))
        return Found(
            servers, hanging, Cost(seconds, 0.07, 1.5, 900.0, 90 << 20), Looks(servers - hanging, 60, 1.0, 1.1)
        )

    monkeypatch.setattr(fleet, "measure", measured)
    assert fleet.main(["--servers", "4", "--seconds", "2", "--json", str(tmp_path / "fleet.json")]) == 0
    assert asked == [(4, 0, 2.0), (5, 1, 2.0)]
    shown = capsys.readouterr().out
    assert "5, 1 hanging" in shown
    assert "7.0%" in shown
    told = json.loads((tmp_path / "fleet.json").read_text())["measured"]
    assert [one["looks"]["longest"] for one in told] == [1.1, 1.1]
    assert table([]).row_count == 0
