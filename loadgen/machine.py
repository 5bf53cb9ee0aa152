"""On what and with what a run was made: for whoever reads its file later."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

PACKAGES = {"loadgen": "paged-top", "aiohttp": "aiohttp", "msgspec": "msgspec"}


def versions() -> dict[str, str]:
    """Of loadgen, Python and what sends the requests."""
    return {"python": platform.python_version(), **{name: metadata.version(of) for name, of in PACKAGES.items()}}


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, str | int | float | None]:
    """The client's: processor, cores that it may use, memory, load before the run, system."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = None
    with suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    load = None
    with suppress(OSError, AttributeError):
        load = round(os.getloadavg()[0], 2)
    return {
        "processor": _processor(),
        "cores": usable,
        "memory_bytes": memory,
        "load_1_min": load,
        "system": f"{platform.system()} {platform.release()} ({sys.platform})",
    }
