"""The thread count is set before torch is loaded, and a person's own setting wins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine.threads import physical_cores, set_threads


def test_a_setting_is_kept_and_a_missing_one_is_chosen() -> None:
    caches = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
    environment = {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE"}
    set_threads(environment)
    assert environment == {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE", **caches}
    environment = {}
    set_threads(environment)
    threads = {"OMP_NUM_THREADS": str(physical_cores())}
    assert environment == {**threads, "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000", **caches}
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)
    for before, wanted in (({}, "3"), ({"OMP_NUM_THREADS": "7"}, "7")):  # one of several engines has a share
        set_threads(before, threads=3)
        assert before["OMP_NUM_THREADS"] == wanted


def test_it_refuses_to_come_after_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert torch
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with pytest.raises(RuntimeError, match="too late"):
        set_threads()


def test_torch_takes_it_over() -> None:
    code = (
        "from engine.threads import physical_cores, set_threads; set_threads(); import torch; "
        "print(torch.get_num_threads() == physical_cores())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout == "True\n"
