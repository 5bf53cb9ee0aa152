"""`paged-engine`'s settings: sizes, ranges and environment variables; an error is one line and exit code 2."""

import argparse
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli import make_parser, size
from engine.protocol import Control
from engine.serve_command import configuration


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "engine.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
    )


def check_one_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512MiB", 512 << 20),
        ("2GiB", 2 << 30),
        ("1GB", 10**9),
        ("1.5 GiB", 3 << 29),
        ("64k", 64 << 10),
        ("4096", 4096),
        ("10b", 10),
        ("1PiB", 1 << 50),
        ("0.5 PB", 10**15 // 2),
        ("1024t", 1 << 50),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1GiB", "0", "1XB", "1e3", "nan", "9999TiB", "1.1PiB", "1 G i B", "1iB", "9" * 400]
)
def test_bad_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], ["--port", "0 to 65535", "70000"]),
        (["--port", "http"], ["--port", "whole number"]),
        (["--dtype", "int8"], ["--dtype", "bfloat16"]),
        (["--quantize", "int4"], ["--quantize", "none", "int8", "q4"]),
        (["--batching", "magic"], ["--batching", "continuous"]),
        (["--kv-memory", "lots"], ["--kv-memory", "512MiB"]),
        (["--block-size", "0"], ["--block-size", "1 to 1024"]),
        (["--max-num-seqs", "5000"], ["--max-num-seqs", "4096"]),
        (["--max-prefill-chunk", "-1"], ["--max-prefill-chunk", "0 to 1048576"]),
        (["--max-wait", "-1"], ["--max-wait", "from 0 to 86400"]),
        (["--max-wait", "nan"], ["--max-wait", "seconds"]),
        (["--scheduling-policy", "lifo"], ["--scheduling-policy", "fcfs", "shortest_prefill"]),
        (["--reserved-fit", "worst"], ["--reserved-fit", "first", "best"]),
        (["--preempt", "never"], ["--preempt", "recompute", "swap", "auto"]),
        (["--swap-space", "-1"], ["--swap-space", "512MiB"]),
        (["--swap-space", "-1GiB"], ["--swap-space", "512MiB", "-1GiB"]),
        (["--max-model-len", "1"], ["--max-model-len", "2 to 2147483647"]),
        (["--max-model-len", "9" * 10], ["--max-model-len", "2 to 2147483647"]),
        (["--model", "\udcff"], ["--model", "UTF-8"]),
        (["--served-model-name", "a", "\udcff"], ["--served-model-name", "UTF-8"]),
        (["--crash-dir", "\udcff"], ["--crash-dir", "UTF-8"]),
        (["--nonsense"], ["--nonsense"]),
        (["--nonsense\n\x1b[2J"], [r"--nonsense\n\x1b[2J"]),
        (["--host", "a\nb"], ["--host", r"a\nb"]),
        (["--api-key-file", "a\nb"], ["--api-key-file", r"a\nb"]),
        (["--admin-key-file", ""], ["--admin-key-file", "must be a file's name"]),
    ],
)
def test_bad_flags(arguments: list[str], words: list[str]) -> None:
    check_one_line(run("serve", *arguments), *words)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("PAGED_ENGINE_PORT", "abc", "whole number"),
        ("PAGED_ENGINE_DTYPE", "int8", "bfloat16"),
        ("PAGED_ENGINE_QUANTIZE", "gguf", "q4"),
        ("PAGED_ENGINE_KV_MEMORY", "x", "512MiB"),
        ("PAGED_ENGINE_NO_PREFIX_CACHE", "maybe", "1 or 0"),
        ("PAGED_ENGINE_SERVED_MODEL_NAME", "a \udcff", "UTF-8"),
    ],
)
def test_bad_environment(name: str, value: str, word: str) -> None:
    check_one_line(run("serve", **{name: value}), name, word)


def test_help_tells_defaults() -> None:
    told = " ".join(run("serve", "--help").stdout.split())
    assert "of weights and KV (default: auto" in told
    assert "prompt and answer together (default: what" in told


def test_bad_environment_of_one_command_breaks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_WAIT", "nan"), ("PORT", "x"), ("DTYPE", "int8"), ("NO_PREFIX_CACHE", "maybe")):
        monkeypatch.setenv(f"PAGED_ENGINE_{name}", value)
    parser = make_parser()
    assert parser.parse_args(["plan"]).command == "plan"
    assert parser.parse_args(["prepare"]).command == "prepare"
    with pytest.raises(SystemExit):
        parser.parse_args(["serve"])
    given = ["--max-wait", "1", "--port", "0", "--dtype", "auto", "--no-prefix-cache"]
    assert parser.parse_args(["serve", *given]).max_wait == 1.0
    assert "PAGED_ENGINE_MAX_WAIT" in run("serve", "--help").stdout


@pytest.mark.parametrize("command", ["--help", "plan", "plan --model tiny --json", "simulate {trace}", "serve --help"])
def test_output_that_cannot_be_written(command: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [7]}')
    program = f"{sys.executable} -m engine.cli {command.format(trace=trace)}"
    for output, reason in ((">/dev/full", "No space left"), (">&-", "Bad file descriptor")):
        done = subprocess.run(f"{program} {output}", shell=True, capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        (line,) = done.stderr.splitlines()
        assert f"cannot write to standard output: {reason}" in line
    unread = subprocess.run(f"({program}; echo $? >&2) | true", shell=True, capture_output=True, text=True)
    assert unread.stderr in ("0\n", "141\n")  # 0: it had written all before its reader went
    assert subprocess.run(f"{program} 2>&-", shell=True, capture_output=True).returncode == 0


def test_output_in_ascii() -> None:
    plain = run("plan", "--model", "tiny", PYTHONIOENCODING="ascii")
    assert (plain.returncode, plain.stderr, "?? tail" in plain.stdout) == (0, "", True)


def test_settings_from_the_environment_give_way_to_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGED_ENGINE_MODEL", "tiny")
    monkeypatch.setenv("PAGED_ENGINE_KV_MEMORY", "1GiB")
    monkeypatch.setenv("PAGED_ENGINE_NO_PREFIX_CACHE", "1")
    monkeypatch.setenv("PAGED_ENGINE_NO_CHUNKED_PREFILL", "0")
    monkeypatch.setenv("PAGED_ENGINE_SERVED_MODEL_NAME", "a b")
    arguments = make_parser().parse_args(["serve", "--kv-memory", "2GiB"])
    assert (arguments.model, arguments.kv_memory) == ("tiny", 2 << 30)
    assert (arguments.no_prefix_cache, arguments.no_chunked_prefill) == (True, False)
    assert arguments.served_model_name == ["a", "b"]


def test_settings_of_scheduling_reach_the_control() -> None:
    plain = configuration(make_parser().parse_args(["serve"]))
    assert (plain.control, plain.swap_space) == (Control(), 0)
    flags = "--reserved-fit best --scheduling-policy priority --max-prefill-chunk 64 --max-wait 2.5 --preempt swap"
    config = configuration(make_parser().parse_args(["serve", *flags.split(), "--swap-space", "1GiB"]))
    assert config.swap_space == 1 << 30
    assert config.control == Control(
        reserved_fit="best", scheduling_policy="priority", max_prefill_chunk=64, max_wait=2.5, preempt="swap"
    )
    assert configuration(make_parser().parse_args(["serve", "--swap-space", "0"])).swap_space == 0


def test_help_imports_neither_torch_nor_aiohttp() -> None:
    code = (
        "import sys, engine.cli\n"
        "try: engine.cli.main(['serve', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'aiohttp', 'transformers', 'numpy'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "--kv-memory" in result.stdout


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        check_one_line(run("serve", "--model", "tiny", "--port", port), port, "in use")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b", "a" * 300])
def test_an_unknown_host(host: str) -> None:
    check_one_line(run("serve", "--model", "tiny", "--host", host), "cannot listen on", host)


def test_an_unknown_model() -> None:
    check_one_line(run("serve", "--model", "nonsense", "--port", "0"), "nonsense", "smollm2-135m, tiny")
    check_one_line(run("serve", "--model", "~no-such-user/x", "--port", "0"), "~no-such-user/x")
    check_one_line(run("prepare", "--model", "/" + "a" * 5000), "/aaa", "too long")


def test_a_corrupt_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    check_one_line(run("serve", "--model", str(tmp_path), "--port", "0"), "config.json", "not valid JSON")


def test_a_corrupt_tokenizer(tmp_path: Path) -> None:
    from engine.loading.resolve import resolve_model

    for path in resolve_model("tiny").folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    check_one_line(run("serve", "--model", str(tmp_path), "--port", "0", "--kv-memory", "1MiB"), "tokenizer")


def test_settings_the_model_cannot_have() -> None:
    too_long = ["--max-model-len", "100000"]
    check_one_line(run("serve", "--model", "tiny", "--port", "0", *too_long), "--max-model-len", "4096")
    too_small = ["--kv-memory", "100"]
    check_one_line(run("serve", "--model", "tiny", "--port", "0", *too_small), "--kv-memory")
    too_much = ["--swap-space", "900TiB"]
    check_one_line(run("serve", "--model", "tiny", "--port", "0", *too_much), "--swap-space")
    without = ["--preempt", "swap"]
    check_one_line(run("serve", "--model", "tiny", "--port", "0", *without), "preempt", "swap")
