"""`python -m benchmarks.slowed_engine SHARE serve ...`: paged-engine, each of whose steps takes longer by a share.

It is what `benchmarks.compare_power` looks for with `loadgen compare`. The core sleeps after each step for that share
of the step's time, before anybody is told of it. What a sleep took too long is taken off the next one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

CORE, SLOWED_CORE = "engine.core_process", "benchmarks.slowed_engine"
LEAST_SLEEP = 0.001  # seconds: shorter ones are put off, as the system cannot keep them


class Brake:
    """Takes a share of the time of what it wraps on top, after it."""

    def __init__(
        self,
        share: float,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share, self._clock, self._sleep = share, clock, sleep
        self._owed = 0.0

    def __call__(self, step: Callable[..., Any], *arguments: Any) -> Any:
        begun = self._clock()
        result = step(*arguments)
        ended = self._clock()
        self._owed += self._share * (ended - begun)
        if self._owed >= LEAST_SLEEP:
            self._sleep(self._owed)
            self._owed -= self._clock() - ended
        return result


def _serve(share: str, arguments: list[str]) -> int:
    """The engine, with its core's process replaced by this module."""
    from engine import cli

    popen = subprocess.Popen

    def start(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
        at = command.index(CORE)
        return popen([*command[:at], SLOWED_CORE, share, *command[at + 1 :]], **more)

    subprocess.Popen = start  # type: ignore[assignment, misc]
    return cli.main(arguments)


def _core(share: float, arguments: list[str]) -> int:
    from engine import core_process
    from engine.core import EngineCore

    brake, step = Brake(share), EngineCore.step
    EngineCore.step = lambda self: brake(partial(step, self))  # type: ignore[method-assign]
    return core_process.main(arguments)


def main() -> int:
    """Either part, told by what is asked of it."""
    share, *arguments = sys.argv[1:]
    if "--fd" not in arguments:
        return _serve(share, arguments)
    status = _core(float(share), arguments)
    sys.stderr.flush()
    os._exit(status)  # as the core itself does: threads of numeric libraries must not hold up the end


if __name__ == "__main__":
    sys.exit(main())
