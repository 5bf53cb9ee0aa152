"""What routing finds on real engines is reckoned from what they say."""

from __future__ import annotations

from collections import Counter

from benchmarks.routed import SYSTEM_TOKENS, main, requests


def test_each_system_prompt_is_asked_equally_often():
    asked = requests(5, 20, seed=3)
    assert set(Counter(tuple(prompt[:SYSTEM_TOKENS]) for prompt in asked).values()) == {4}
    assert asked == requests(5, 20, seed=3)
    assert asked != requests(5, 20, seed=4)


def test_a_small_run_says_what_was_found(tmp_path, capsys):
    """Too few requests for the aims: that it says so, or meets them, is told by its exit code."""
    code = main(
        ["--workers", "2", "--prompts", "6", "--requests", "24", "--clients", "4", "--out", str(tmp_path / "out.md")]
    )
    told = (tmp_path / "out.md").read_text()
    assert capsys.readouterr().out == told
    assert code == ("**missed**" in told)
    for way in ("prefix", "least_loaded", "round_robin"):
        (row,) = (line for line in told.splitlines() if line.startswith(f"| {way} |"))
        rate, sent, computed = (cell.strip() for cell in row.split("|")[2:5])
        assert 0 <= float(rate.rstrip("%")) <= 100
        assert min(float(sent), float(computed)) >= 1
