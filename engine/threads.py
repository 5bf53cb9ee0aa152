"""How many threads the numerics use, how they wait, and what they keep. Torch reads all of it when imported."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path


def physical_cores() -> int:
    """Cores this process may use, each counted once however many threads it has, and within a cgroup's quota."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(cpu))
    return max(1, min(len(cores), _cgroup_quota() or len(cores)))


def _cgroup_quota() -> int | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


def set_threads(environment: MutableMapping[str, str] | None = None, threads: int | None = None) -> None:
    """Choose them in the environment, unless a person did; `threads` of them, or one for each core.

    Raises RuntimeError if torch is loaded already.

    Waiting threads spin for some microseconds, then sleep (a burst of 64 requests on a quiet machine: 238 output
    tokens/s; without the spin 199, with endless spinning 244). The engine shares its cores with the API process, a
    dashboard and a load generator: an endlessly spinning thread keeps the very core that the one it waits for needs
    (measured on two busy cores: a decode step of 350 ms against 52 ms).
    """
    target = os.environ if environment is None else environment
    choices = {"OMP_NUM_THREADS": str(threads or physical_cores())}
    # Two caches of compiled products, an entry for each number of rows and each weight's shape: steps of all sizes
    # would fill their 1,024 places with 700 MB. 128 keep the sizes in use (no slower, measured).
    choices |= {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
    if "OMP_WAIT_POLICY" not in target:
        choices |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
    if target is os.environ and "torch" in sys.modules and not choices.keys() <= target.keys():
        raise RuntimeError("set_threads comes too late: torch is already imported")
    for name, value in choices.items():
        target.setdefault(name, value)


def waits_asleep() -> bool:
    """Whether threads of this process sleep while they wait, rather than spin."""
    return os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"
