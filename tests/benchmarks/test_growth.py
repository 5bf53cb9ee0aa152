"""Decode steps of growing batches and contexts, on the tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.growth import kv_memory
from benchmarks.messages import Do, Settings
from benchmarks.peers.decode import make
from benchmarks.works import Dice, Work

ROOT = Path(__file__).parent.parent.parent


def test_growth_is_measured_and_written(tmp_path):
    command = [sys.executable, "-m", "benchmarks.growth", "--model", "tiny", "--max-batch", "4", "--max-context", "128"]
    files = ["--json", str(tmp_path / "g.json"), "--plot", str(tmp_path / "g.txt")]
    done = subprocess.run(
        [*command, "--context", "32", "--batch", "3", "--steps", "4", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "g.json").read_text())
    assert [(point["batch"], point["context"]) for point in found["batches"]] == [(1, 32), (2, 32), (4, 32)]
    assert [(point["batch"], point["context"]) for point in found["contexts"]] == [(3, 64), (3, 128)]
    for point in (*found["batches"], *found["contexts"]):
        assert point["step"]["rounds"] == 4
        assert 0 < point["step"]["least"] <= point["step"]["median"]
        assert point["floor"] > 0
    assert "over the batch" in (tmp_path / "g.txt").read_text()


def test_a_file_that_cannot_be_written_loses_no_figures():
    command = [sys.executable, "-m", "benchmarks.growth", "--model", "tiny", "--max-batch", "1", "--max-context", "64"]
    done = subprocess.run(
        [*command, "--context", "32", "--batch", "1", "--steps", "1", "--json", "/dev/full"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert "decode steps over the batch" in done.stdout
    assert "benchmarks.growth: error:" in done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_large_batch_decodes_together():
    """Its prompts take longer to compute than the first request has to generate."""
    memory = kv_memory([(40, 96)], 4, 1536)
    decode = make(Settings("tiny", "float32", memory, 80, max_num_seqs=40))
    dice = Dice("1", 259, 1.0)
    run = decode.run(Do(Work("growth", tuple(dice.prompt(96) for _ in range(40)), (4,) * 40)), lambda text: None)
    assert len(run.steps) == 4
    assert run.output_tokens == 160
