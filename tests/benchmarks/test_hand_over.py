"""The benchmark of what goes from one engine to another runs, and its figures are of what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.hand_over import main


def test_a_short_run_tells_all_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    main(["--model", "tiny", "--dtype", "float32", "--tokens", "100", "--rounds", "2", "--json", str(path)])
    told = capsys.readouterr().out
    assert "100 tokens are 57,344 bytes" in told  # 7 blocks of 8,192
    found: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    assert [cost["blocks"] for cost in found["copies"]] == ["in a row", "scattered"]
    assert all(cost["nbytes"] == 57_344 and cost["ms"]["rounds"] == 2 for cost in found["copies"])
    assert [call["call"] for call in found["calls"]] == ["read_blocks", "write_blocks"]
    assert all(call["ms"]["rounds"] == 2 and call["first_ms"] > 0 for call in found["calls"])
    assert [cost["memory"] for cost in found["steps"]] == [
        "its own",
        "shared",
        "shared, MADV_HUGEPAGE",
        "shared, while a thread copies",
    ]
    assert all(line in told for line in ("scattered", "shared, MADV_HUGEPAGE"))
    assert found["steps"][0]["ratio"]["median"] == 1
    assert all(step["ms"]["least"] > 0 for step in found["steps"])


def test_what_cannot_be_measured_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--tokens", "0"], ["--rounds", "0"], ["--model", "gpt5"], ["--dtype", "int8"]):
        with pytest.raises(SystemExit):
            main(wrong)
        assert "error: " in capsys.readouterr().err
