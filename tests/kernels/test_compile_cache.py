"""Compiled workers are kept per state of the sources, and processes that start together do not mix them up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import compile_cache

# Workers of one index, for the kinds that the arguments name; each has to do what it says. It is slow to add to the
# index, so that processes without regard for each other would add at the same time.
WORKERS = """
import ctypes
import sys
import time
import torch
from numba.core.caching import IndexDataCacheFile
from kernels.cpu_elementwise import Lookup, lookup_worker
from kernels.cpu_vectors import BFLOAT16, FLOAT32

save_index = IndexDataCacheFile._save_index

def save_slowly(self, overloads):
    time.sleep(3)
    save_index(self, overloads)

IndexDataCacheFile._save_index = save_slowly
for kind, dtype in ((FLOAT32, torch.float32), (BFLOAT16, torch.bfloat16)):
    if str(dtype) in sys.argv:
        table, out, index = torch.arange(16.0), torch.zeros(16, dtype=dtype), torch.zeros(1, dtype=torch.int64)
        call = Lookup(num_rows=1, vectors=1, indexes=index.data_ptr(), table=table.data_ptr(), out=out.data_ptr())
        lookup_worker(FLOAT32, kind).ctypes(ctypes.addressof(call))
        assert torch.equal(out, table.to(dtype)), f"the worker for {dtype} does something else"
"""
KINDS = ("torch.float32", "torch.bfloat16")


def started(cache: Path, *kinds: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PAGED_TOP_CACHE": str(cache), "NUMBA_CACHE_DIR": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", WORKERS, *kinds], env=environment)


def test_processes_that_start_together_keep_what_each_compiled(tmp_path: Path) -> None:
    for process in [started(tmp_path, kind) for kind in KINDS]:
        assert process.wait() == 0
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert len(kept) == 2
    assert started(tmp_path, *KINDS).wait() == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")} == kept


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a worker in it."""
    made = tmp_path_factory.mktemp("compiled")
    assert started(made, KINDS[0]).wait() == 0
    return made


@pytest.fixture
def cache(compiled: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    shutil.copytree(compiled, tmp_path / "cache")
    return tmp_path / "cache"


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_what_cannot_be_read_is_compiled_anew(cache: Path, kind: str) -> None:
    for path in cache.rglob(f"*.{kind}"):
        path.write_bytes(b"")
    assert started(cache, KINDS[0]).wait() == 0


def test_every_state_of_the_sources_has_a_folder(tmp_path: Path) -> None:
    (tmp_path / "cpu_a.py").write_text("1")
    first = compile_cache._sources(tmp_path)
    (tmp_path / "triton_a.py").write_text("1")
    compile_cache._sources.cache_clear()
    assert compile_cache._sources(tmp_path) == first
    (tmp_path / "cpu_b.py").write_text("1")
    compile_cache._sources.cache_clear()
    assert compile_cache._sources(tmp_path) != first


def hand_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another user had made the folder."""
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)


def test_the_folder_is_its_owners_alone(compiled: Path) -> None:
    (made,) = (compiled / "numba").iterdir()
    assert made.stat().st_mode & 0o777 == 0o700
    assert compile_cache.can_be_trusted(made)


@pytest.mark.parametrize("where", ["folder", "parent"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_what_others_can_change_is_not_trusted(
    tmp_path: Path, where: str, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "parent" / "folder"
    folder.mkdir(parents=True)
    unsafe = folder if where == "folder" else folder.parent
    if how == "owner":
        hand_over(unsafe, monkeypatch)
    else:
        unsafe.chmod(0o777)
    assert not compile_cache.can_be_trusted(folder)
    assert "can be changed by other users" in caplog.text


def test_a_folder_in_one_like_tmp_is_trusted_and_a_link_is_what_it_leads_to(tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "mine"
    folder.mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    assert compile_cache.can_be_trusted(folder)
    assert not compile_cache.can_be_trusted(tmp_path / "link")


def test_code_is_not_taken_from_a_folder_that_others_can_write_to(cache: Path, tmp_path: Path) -> None:
    (made,) = (cache / "numba").iterdir()
    (index,) = made.rglob("*.nbi")
    code = f"import os; os.mkdir({str(tmp_path / 'run')!r})"
    index.write_bytes(b"c__builtin__\nexec\n(V" + code.encode() + b"\ntR.")  # a pickle that runs it
    made.chmod(0o777)
    assert started(cache, KINDS[0]).wait() == 0
    assert not (tmp_path / "run").exists()
    made.chmod(0o700)  # which shows that it would have run
    started(cache, KINDS[0]).wait()
    assert (tmp_path / "run").exists()
