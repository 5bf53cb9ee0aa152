"""How many threads the numerics may use. Torch reads this when it is imported: call `set_threads` before."""

from __future__ import annotations

import os
import sys
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


def set_threads(environment: dict[str, str] | None = None) -> None:
    """Set OMP_NUM_THREADS to the physical cores unless a person did. Raises RuntimeError if torch is loaded."""
    target = os.environ if environment is None else environment
    if environment is None and "OMP_NUM_THREADS" not in target and "torch" in sys.modules:
        raise RuntimeError("set_threads comes too late: torch is already imported")
    target.setdefault("OMP_NUM_THREADS", str(physical_cores()))
