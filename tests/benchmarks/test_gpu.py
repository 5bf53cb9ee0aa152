"""What of the GPU's benchmark can be held without one; its checks themselves run in Triton's interpreter."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
import torch

from benchmarks import gpu, gpu_kernels
from benchmarks.gpu import EngineRun, Report, markdown, result_file
from benchmarks.gpu_kernels import CASES, Case, Check, Figure, check, random_layout
from kernels.attention import paged_attention

REPORT = Report(
    card="NVIDIA H200 (NVL)",
    date="2026-12-01",
    torch="2.13.0",
    triton="3.9.0",
    copy_rate=4.2e12,
    checks=[Check("decode", 0.001, 0.016)],
    figures=[Figure("decode 1 x 32,768, bfloat16", 36e-6, 3.7e12, 0.88, 0.85), Figure("prefill", 2e-3, 3e14, 0.7, 0.6)],
    engine=[EngineRun("burst", 12345.6, {"forward": 0.51, "sample": 0.1})],
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_exits_2():
    run = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.strip() == gpu.NO_GPU
    assert run.stdout == ""


def test_the_table_tells_all_and_what_failed():
    text = markdown(REPORT)
    assert "# NVIDIA H200 (NVL), 2026-12-01" in text
    assert "| decode 1 x 32,768, bfloat16 | 36.0 us | 3.70 TB/s | 0.88 | 0.85 |" in text
    assert "| prefill | 2,000.0 us | 300.00 TFLOP/s | 0.70 | 0.6 |" in text
    assert "| burst | 12,346 | 0.51 s | 0.10 s |" in text
    assert REPORT.passed
    assert "FAILED" not in text
    failed = msgspec.structs.replace(REPORT, checks=[Check("decode", float("inf"), 0.016)])
    assert not failed.passed
    assert "| decode (FAILED) | inf | 1.6e-02 |" in markdown(failed)


def test_results_are_named_by_date_and_card(tmp_path):
    assert result_file(tmp_path, REPORT).name == "2026-12-01-gpu-nvidia-h200-nvl.md"


def test_what_is_known_is_kept_before_the_engine_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: REPORT.card)
    monkeypatch.setattr(gpu, "all_checks", lambda *_: REPORT.checks)
    monkeypatch.setattr(gpu, "copy_rate", lambda: REPORT.copy_rate)
    monkeypatch.setattr(gpu, "all_figures", lambda _: REPORT.figures)

    def faults(_):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(gpu, "check_graphs", faults)
    json = tmp_path / "all.json"
    monkeypatch.setattr(sys, "argv", ["gpu", "--results", str(tmp_path), "--json", str(json)])
    with pytest.raises(RuntimeError, match="illegal memory access"):
        gpu.main()
    found = msgspec.json.decode(json.read_bytes(), type=Report)
    assert (found.checks, found.figures, found.engine) == (REPORT.checks, REPORT.figures, [])
    assert "| prefill | 2,000.0 us" in next(tmp_path.glob("*-nvidia-h200-nvl.md")).read_text()


def test_a_layout_gives_every_block_to_one_place():
    sequences = [(1, 1), (16, 1), (17, 3), (100, 100)]
    metadata, num_blocks = random_layout(sequences, torch.device("cpu"), torch.Generator().manual_seed(3))
    metadata.check_cache(num_blocks, 16)
    used = [
        block for row, (n, _) in zip(metadata.host_block_tables, sequences, strict=True) for block in row[: -(-n // 16)]
    ]
    assert len(set(used)) == len(used) == 11
    assert metadata.num_tokens == 105


def test_a_wrong_row_is_seen_however_small_its_results(monkeypatch):
    case = Case(((1, 1), (20_000, 1)), 4, 2, 32)

    def forgets(query, keys, values, metadata, scale, *, backend, **options):
        out = paged_attention(query, keys, values, metadata, scale, backend="reference", **options)
        return out * torch.tensor([1.0, kept], dtype=out.dtype)[:, None, None]

    monkeypatch.setattr(gpu_kernels, "paged_attention", forgets)
    for kept in (1.0, 0.0):
        assert check(case, torch.bfloat16, torch.device("cpu"), seed=1).passed == bool(kept)


def test_cases_are_told_apart():
    names = [str(case) for case in CASES]
    assert len(set(names)) == len(names)
    assert str(Case(((40, 1), (9, 3)), 4, 2, 64, window=5, soft_cap=2.0, float8=True)) == (
        "chunk+decode 4/2x64 to 40 window 5 cap 2 float8"
    )
