"""Notices that a step does not end, and sees that the process does.

A thread of its own looks once a second while steps are made, and sleeps while none are. A step that holds Python's
lock would stop that thread too: behind it stands a timer of the interpreter's (`faulthandler`), which needs no lock.
"""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable

HUNG = 75  # exit code of a process whose step did not end
LOOK_SECONDS = 1.0
GRACE = 10.0  # seconds that the thread, or whoever reports a crash, has before the timer ends the process
FIRST_STEPS = 10  # that compute: they may compile kernels, and have at least `COMPILE_SECONDS`
COMPILE_SECONDS = 300.0


def end_anyway(seconds: float = GRACE) -> None:
    """Have this process end after so long, with the stacks of all its threads on standard error, whatever it does."""
    faulthandler.dump_traceback_later(seconds, exit=True)


class Watchdog:
    """Calls `hung` with a step's age, once, in its own thread, when a step takes longer than `timeout` seconds; 0:
    never. Nothing goes on in the thread that steps after that: `hung` must end the process.

    A process that is stopped (SIGSTOP) within a step for longer than that counts as hanging too.
    """

    def __init__(self, timeout: float, hung: Callable[[float], None], grace: float = GRACE) -> None:
        self._timeout = timeout
        self._hung = hung
        self._grace = grace
        self._steps = 0  # that have begun
        self._computed = 0  # of those that have ended, those in which something was computed
        self._begun = 0.0  # when the present one did; 0: there is none
        self._asleep = False
        self._wake = threading.Event()
        self._too_late = False
        if timeout:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self) -> None:
        """A step begins."""
        self._steps += 1
        self._begun = time.monotonic()
        if self._asleep:
            self._wake.set()

    def end(self, computed: bool) -> None:
        """It has ended; `computed`: it had something to compute. Does not return if that was too late."""
        self._begun = 0.0
        self._computed += computed
        if self._too_late:
            threading.Event().wait()

    def _limit(self) -> float:
        return max(self._timeout, COMPILE_SECONDS) if self._computed < FIRST_STEPS else self._timeout

    def _watch(self) -> None:
        seen = 0  # steps that had begun at the last look
        while True:
            begun, limit = self._begun, self._limit()
            age = time.monotonic() - begun if begun else 0.0
            if age > limit:
                self._too_late = True
                end_anyway(self._grace)
                self._hung(age)
                return
            if begun or self._steps != seen:
                seen = self._steps
                end_anyway(limit - age + self._grace)
                time.sleep(LOOK_SECONDS)
            else:
                faulthandler.cancel_dump_traceback_later()
                self._sleep()

    def _sleep(self) -> None:
        """Until a step begins; one that began before it was seen that this thread sleeps is noticed here."""
        self._wake.clear()
        self._asleep = True
        if not self._begun:
            self._wake.wait()
        self._asleep = False
