"""`paged-engine plan` as it is called: figures, bad input, and that it loads nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.loading.resolve import resolve_model
from engine.sizing.find import find_shape

ROOT = Path(__file__).parents[3]
CONFIGS = Path(__file__).parent / "configs"
LLAMA = str(CONFIGS / "llama-3-70b.json")
GIB = 1 << 30


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "engine.cli", "plan", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
    )


def plan(*arguments: str, **environment: str) -> Any:
    done = run(*arguments, "--json", **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_model_on_a_device() -> None:
    answer = plan("--model", LLAMA, "--memory", "80GiB", "--weights-bits", "4")
    memory, kv = answer["memory"], answer["kv"]
    matrices = 70_553_706_496 - 2 * 128_256 * 8192 - 161 * 8192
    assert memory["weights"] == pytest.approx(matrices * (4 + 20 / 128) / 8 + 2 * (70_553_706_496 - matrices), abs=1)
    assert memory["usable"] == int(80 * GIB * 0.9) == memory["weights"] + memory["kv"]
    assert kv["bytes_per_token"] == 327_680
    assert kv["num_blocks"] == memory["kv"] // (16 * 327_680)
    assert answer["requests"]["assumed"]
    assert answer["concurrency"]["reserved"] == kv["num_blocks"] // 256
    assert answer["concurrency"]["paged"] == kv["num_blocks"] // 72
    together = {cost["block_size"]: cost["fragmentation"] + cost["table"] for cost in answer["block_sizes"]}
    assert answer["best_block_size"] == min(together, key=together.__getitem__)
    figures = {"weights", "usable", "overhead", "kv_bytes_per_token", "requests", "concurrency", "tail", "lookup"}
    assert set(answer["assumptions"]) == figures


def test_lengths_of_a_trace() -> None:
    answer = plan("--model", LLAMA, "--memory", "80GiB", "--weights-bits", "4", "--trace", "traces/chat500.jsonl")
    assert (answer["requests"]["count"], answer["requests"]["left_out"]) == (1127, 0)
    longer = plan("--trace", "traces/azure_conv_excerpt.csv", "--context", "1000")
    assert longer["requests"]["count"] + longer["requests"]["left_out"] == 190
    assert longer["requests"]["left_out"] > 0
    assert "longer than --context" in longer["notes"][0]


def test_more_devices_hold_less_each() -> None:
    one, four = (plan("--model", LLAMA, "--memory", "200GiB", "--tensor-parallel-size", n) for n in ("1", "4"))
    assert four["kv"]["bytes_per_token"] * 4 == one["kv"]["bytes_per_token"]
    assert four["memory"]["weights"] * 4 == pytest.approx(one["memory"]["weights"], rel=1e-3)


def test_a_shared_prefix_lets_more_in() -> None:
    common = ["--kv-bytes-per-token", "1MiB", "--memory", "100GiB", "--gpu-memory-utilization", "1"]
    at_once = plan(*common, "--shared-tokens", "1000")["concurrency"]
    assert at_once["paged"] == 6400 // 72
    assert at_once["paged_sharing"] == (6400 - 62) // (72 - 62)


def test_whole_prompts_that_are_shared() -> None:
    assert plan("--shared-tokens", "100", "--prompt-tokens", "100", "--sessions", "3")["sharing"]["tokens"] == 100


def test_sizes_that_are_given() -> None:
    given = ["--weights", "40GiB", "--kv-bytes-per-token", "1MiB", "--overhead", "2GiB"]
    answer = plan("--model", LLAMA, "--memory", "80GiB", *given)
    assert (answer["memory"]["weights"], answer["memory"]["kv"]) == (40 * GIB, 30 * GIB)
    assert answer["kv"]["num_blocks"] == 30 * 1024 // 16


def test_kv_in_fp8_is_half() -> None:
    assert plan("--model", LLAMA, "--kv-dtype", "fp8")["kv"]["bytes_per_token"] == 163_840


def test_windows_are_noted() -> None:
    answer = plan("--model", str(CONFIGS / "gemma-3-4b.json"))
    per_layer = answer["kv"]["bytes_per_token"] // 34
    assert answer["kv"]["bytes_per_context_windowed"] == per_layer * (5 * 4096 + 29 * 1024)
    assert "29 of 34 layers" in answer["notes"][1]


def test_a_short_model_has_a_short_context() -> None:
    assert plan("--model", str(CONFIGS / "gpt2.json"))["context"] == 1024
    assert (
        "beyond the model's own 1,024" in plan("--model", str(CONFIGS / "gpt2.json"), "--context", "2048")["notes"][0]
    )


@pytest.mark.parametrize("name", ["tiny", pytest.param("smollm2-135m", marks=pytest.mark.model)])
def test_models_by_name(name: str, tmp_path: Path) -> None:
    resolved = resolve_model(name)
    for path in (name, str(resolved.folder), str(resolved.folder / "config.json")):
        shape = find_shape(path)
        assert shape.kv_elements() * 2 == resolved.config.kv_bytes_per_token(2)
        assert shape.max_context == resolved.config.max_position_embeddings


@pytest.mark.model
def test_smollm2_that_is_not_converted_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from engine.sizing.memory import weigh

    converted = find_shape("smollm2-135m")
    monkeypatch.setenv("PAGED_TOP_CACHE", str(tmp_path))
    packed = find_shape("smollm2-135m")
    assert list(tmp_path.iterdir()) == []
    assert packed.parameters == converted.parameters
    assert packed.kv_elements() == converted.kv_elements()
    assert weigh(packed, None, 1).bytes == weigh(converted, None, 1).bytes == 2 * 134_515_008


def test_a_hub_model_that_is_cached(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--meta--llama"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text(Path(LLAMA).read_text())
    answer = plan("--model", "meta/llama", HF_HOME=str(tmp_path))
    assert (answer["model"]["name"], answer["model"]["layers"]) == ("meta/llama", 80)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nonsense"], ["nonsense", "smollm2-135m, tiny", "hub id"]),
        (["--model", "nobody/nothing"], ["nobody/nothing", "hub"]),
        (["--model", "missing.json"], ["no such file", "missing.json"]),
        (["--model", "tests"], ["tests/config.json", "No such file"]),
        (["--model", "pyproject.toml"], ["pyproject.toml", "not valid JSON"]),
        (["--model", "/" + "a" * 5000], ["cannot look for the model", "too long"]),
        (["--model", LLAMA, "--memory", "80GiB"], ["131.42 GiB", "--weights-bits", "--tensor-parallel-size"]),
        (["--model", LLAMA, "--memory", "150GiB", "--overhead", "10GiB"], ["overhead 10 GiB"]),
        (["--kv-bytes-per-token", "1MiB", "--memory", "1MiB"], ["--memory", "no block of 16"]),
        (["--memory", "80GiB"], ["--memory needs --model"]),
        (["--memory", "much"], ["--memory", "512MiB"]),
        (["--context", "0"], ["--context", "1 to 2147483647"]),
        (["--context", "9" * 11], ["--context", "1 to 2147483647"]),
        (["--model", "/dev/null"], ["/dev/null is a device", "config.json"]),
        (["--block-size", "0"], ["--block-size", "1 to 1024"]),
        (["--weights-bits", "3"], ["--weights-bits", "'4', '8', '16', '32'"]),
        (["--kv-dtype", "int4"], ["--kv-dtype", "fp8"]),
        (["--gpu-memory-utilization", "1.5"], ["--gpu-memory-utilization", "at most 1"]),
        (["--gpu-memory-utilization", "nan"], ["--gpu-memory-utilization", "at most 1"]),
        (["--model", LLAMA, "--tensor-parallel-size", "3"], ["--tensor-parallel-size", "64 heads", "1, 2, 4, 8"]),
        (["--prompt-tokens", "4000", "--output-tokens", "97"], ["--prompt-tokens", "--context 4,096"]),
        (["--sessions", "5"], ["--sessions needs --shared-tokens"]),
        (["--shared-tokens", "101", "--prompt-tokens", "100"], ["--shared-tokens: must be from 1 to 100", "101"]),
        (["--shared-tokens", "1025", "--sessions", "5"], ["--shared-tokens", "1 to 1,024", "--prompt-tokens"]),
        (["--shared-tokens", "8", "--trace", "traces/azure_conv_excerpt.csv"], ["--shared-tokens", "1 to 7"]),
        (["--trace", "missing.jsonl"], ["missing.jsonl", "No such file"]),
        (["--trace", "traces/chat500.jsonl", "--context", "100"], ["--context", "at least 1025"]),
        (["--trace", "traces/chat500.jsonl", "--prompt-tokens", "1"], ["--trace", "--prompt-tokens"]),
    ],
)  # fmt: skip
def test_bad_input(arguments: list[str], words: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1 or "fetching" in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    config = json.loads(Path(LLAMA).read_text())
    del config["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run("--model", str(tmp_path))
    assert (done.returncode, "num_hidden_layers is missing" in done.stderr) == (2, True)


def test_a_checkpoint_packed_in_an_unknown_way_needs_its_size(tmp_path: Path) -> None:
    config = json.loads(Path(LLAMA).read_text()) | {"quantization_config": {"quant_method": "quip"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run("--model", str(tmp_path), "--memory", "80GiB")
    assert (done.returncode, "quantization_config (quip)" in done.stderr) == (2, True)
    assert plan("--model", str(tmp_path), "--memory", "80GiB", "--weights", "30GiB")["memory"]["kv"] == 42 * GIB


def test_settings_from_the_environment() -> None:
    answer = plan(PAGED_ENGINE_MODEL=LLAMA, PAGED_ENGINE_BLOCK_SIZE="32")
    assert (answer["model"]["name"], answer["block_size"]) == ("llama-3-70b", 32)


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys, engine.cli\n"
        f"assert engine.cli.main(['plan', '--model', {LLAMA!r}, '--memory', '200GiB']) == 0\n"
        "assert not {'torch', 'transformers', 'numba', 'aiohttp'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["llama-3-70b", "gemma-3-4b", "deepseek-v3", "falcon-7b", "gpt-oss-120b", "smollm2-135m"]
)
def test_the_report_fits_a_narrow_terminal(name: str) -> None:
    done = run(
        *("--model", str(CONFIGS / f"{name}.json"), "--memory", "1TiB", "--trace", "traces/chat500.jsonl"),
        *("--sessions", "123456", "--shared-tokens", "1001", "--context", "100000"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert sum("◀" in line for line in lines) == 1


def test_a_reader_that_stops_reading() -> None:
    command = f"{sys.executable} -m engine.cli plan --model {LLAMA} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
