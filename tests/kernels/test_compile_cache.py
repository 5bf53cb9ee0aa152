"""Compiled workers are kept per state of the sources, and processes that start together do not mix them up."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_what_cannot_be_read_is_compiled_anew(tmp_path: Path, kind: str) -> None:
    assert started(tmp_path, KINDS[0]).wait() == 0
    for path in tmp_path.rglob(f"*.{kind}"):
        path.write_bytes(b"")
    assert started(tmp_path, KINDS[0]).wait() == 0


def test_every_state_of_the_sources_has_a_folder(tmp_path: Path) -> None:
    (tmp_path / "cpu_a.py").write_text("1")
    first = compile_cache._sources(tmp_path)
    (tmp_path / "triton_a.py").write_text("1")
    compile_cache._sources.cache_clear()
    assert compile_cache._sources(tmp_path) == first
    (tmp_path / "cpu_b.py").write_text("1")
    compile_cache._sources.cache_clear()
    assert compile_cache._sources(tmp_path) != first
