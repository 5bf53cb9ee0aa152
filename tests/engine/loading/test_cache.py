"""A folder of the cache is whole or absent, and made once however many processes ask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.loading.cache import cache_folder, made_once
from engine.loading.errors import ModelError

SLOW_MAKER = """
import sys, time
from pathlib import Path
from engine.loading.cache import made_once

def make(folder: Path) -> None:
    (folder / "first").write_text("1")
    with Path(sys.argv[1]).open("a") as log:
        log.write("made\\n")
    print("half", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "second").write_text("2")

print(sorted(p.name for p in made_once("thing", make).iterdir()), flush=True)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGED_TOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def start(log: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_MAKER, str(log), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_folder_is_the_users_or_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGED_TOP_CACHE", "~/elsewhere")
    assert cache_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("PAGED_TOP_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "paged-top"


def test_a_folder_is_made_once(cache: Path) -> None:
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "file").write_text("x")
        (folder / "file").chmod(0o600)  # as safetensors does

    assert made_once("thing", make) == made_once("thing", make) == cache / "models" / "thing"
    assert (cache / "models" / "thing" / "file").stat().st_mode & 0o777 == 0o644
    assert len(calls) == 1
    assert (cache / "models" / "thing" / "file").read_text() == "x"


def test_a_failed_making_leaves_nothing(cache: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "file").write_text("x")
        raise ModelError("no")

    for _ in range(2):  # and its lock is free again
        with pytest.raises(ModelError, match="no"):
            made_once("thing", make)
        assert [p.name for p in (cache / "models").iterdir() if p.is_dir()] == []


def test_two_processes_make_it_once(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = start(log, 1.0)
    assert first.stdout is not None
    assert first.stdout.readline() == "half\n"
    second = start(log, 1.0)
    outputs = [process.communicate(timeout=60) for process in (first, second)]
    assert [out for out, _ in outputs] == ["['first', 'second']\n"] * 2
    assert "waiting for another process" in outputs[1][1]
    assert log.read_text() == "made\n"


def test_a_killed_making_is_begun_anew(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    killed = start(log, 60.0)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "half\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(timeout=60)
    assert not (cache / "models" / "thing").exists()
    again = start(log, 0.0)
    out, _ = again.communicate(timeout=60)
    assert out.splitlines() == ["half", "['first', 'second']"]
    assert [p.name for p in (cache / "models").iterdir() if p.is_dir()] == ["thing"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PAGED_TOP_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="PAGED_TOP_CACHE names another"):
        made_once("thing", lambda folder: None)
    for impossible in ("~no-such-user/x", str(tmp_path / ("a" * 5000))):
        monkeypatch.setenv("PAGED_TOP_CACHE", impossible)
        with pytest.raises(ModelError, match="PAGED_TOP_CACHE names another"):
            made_once("thing", lambda folder: None)


def test_weights_without_room_on_the_disk(cache: Path) -> None:
    cache.mkdir()
    code = (
        "import resource, signal\n"
        "from engine.loading.errors import ModelError\n"
        "from engine.loading.resolve import resolve_model\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "try: resolve_model('tiny')\n"
        "except ModelError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"cannot write the model cache {cache}" in told.stdout, told.stderr
    assert [path.name for path in (cache / "models").iterdir() if path.is_dir()] == []
