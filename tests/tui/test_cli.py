"""The command line: bad input is one line and exit code 2, and help loads nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tui.cli import main
from tui.command_line import parse

RECORDING = Path(__file__).with_name("recording.jsonl.gz")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("PAGED_TOP_") and name != "PAGED_TOP_CACHE":
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "localhost"], "--url: must be an address such as http://127.0.0.1:8000, got 'localhost'"),
        (["--url", "http://host:port"], "--url: must be an address"),
        (["--url", "ftp://x"], "--url: must be an address"),
        (["--url", "http://\udcff"], "--url: must be an address"),
        (["--url", "http://\u2603"], "--url: must be an address"),
        (["--url", "http://a\x01"], "--url: must be an address"),
        (["--url", "http://[::1"], "--url: must be an address"),
        (["--url", "http://[::1]]"], "--url: must be an address"),
        (["--url", "http://1.2.3.999"], "--url: must be an address"),
        (["--url", "http://x:99999"], "--url: must be an address"),
        (["--url", "http://x:0"], "--url: must be an address"),
        (["--url", ""], "--url: must be an address"),
        (["--url", "http://"], "--url: must be an address"),
        (["--url", "http://x/?q"], "--url: must be an address"),
        (["--url", "http://x/#f"], "--url: must be an address"),
        (["--url", "http://x y"], "--url: must be an address"),
        (["--url", "http://-x"], "--url: must be an address"),
        (["--nonsense"], "--nonsense"),
        (["--url", "http://x", "--model", "tiny"], "--model"),
        (["--demo", "--once"], "--once"),
        (["--demo", "--json"], "--json"),
        (["--demo", "--readonly"], "--readonly"),
    ],
)
def test_bad_options(arguments, words, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(("name", "value"), [("URL", "nowhere"), ("READONLY", "perhaps")])
def test_bad_environment(name, value, capsys, monkeypatch):
    monkeypatch.setenv(f"PAGED_TOP_{name}", value)
    with pytest.raises(SystemExit) as exit_info:
        main([])
    assert exit_info.value.code == 2
    assert f"PAGED_TOP_{name}" in capsys.readouterr().err


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom tui.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'textual', 'httpx', 'numpy', 'rich', 'torch', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "PAGED_TOP_URL" in result.stdout


def test_the_app_and_what_it_imports_load_no_torch():
    code = "import sys, tui.app, tui.demo, tui.once\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://h.example/v1/", "https://h.example"),
        ("http://[::1]:80/", "http://[::1]:80"),
        ("http://user:word@my_host:1/below", "http://my_host:1/below"),
        ("http://h:8000/metrics", "http://h:8000"),
        ("http://h:8000/prometheus/metrics/", "http://h:8000"),
        ("h:8000", "http://h:8000"),
        ("127.0.0.1:8000/below", "http://127.0.0.1:8000/below"),
    ],
)
def test_good_addresses(text, url):
    (target,) = parse(["--url", text])[1].targets
    assert target.url == url
    assert target.user == ("user:word" if "@" in text else "")
    assert "word" not in repr(target)


def test_a_full_disk_is_one_line(tmp_path):
    code = f"import sys; from tui.cli import main; sys.exit(main(['play', {str(RECORDING)!r}, '--once']))"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "paged-top: error: standard output: No space left on device\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_is_closed_is_no_traceback(closed):
    command = f"{sys.executable} -m tui.cli play {RECORDING} --once {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
