"""Tests share their cores as the programs do: threads that wait must not spin, and processes have a share each."""

from __future__ import annotations

import os
import signal
import sys

from engine.threads import physical_cores, set_threads

if "torch" not in sys.modules:
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, physical_cores() // processes)))
    set_threads()

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in a shell's background: what is started here would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    """A test's random numbers are the same whatever ran before it: processes share files out as they get free."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
