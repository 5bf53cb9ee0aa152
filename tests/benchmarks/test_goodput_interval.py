"""What the number of batches rests on."""

from __future__ import annotations

import pytest

from benchmarks.goodput_interval import held, main, simulate
from loadgen.experiments import sweep


def test_five_batches_hold_the_truth_more_often_than_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "BATCHES", sweep.BATCHES)  # and back again afterwards
    light, heavy = ([simulate(150, load, seed) for seed in range(150)] for load in (0.6, 0.95))
    assert held(light, 5) >= 0.9
    assert held(heavy, 5) >= 0.7
    assert held(heavy, 10) < held(heavy, 5)


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--runs", "1"])
    assert "at least 2 --runs" in capsys.readouterr().err
