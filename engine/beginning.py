"""How each program begins: Ctrl-C while it loads is no fault, and is told by the exit code. Little is loaded before."""

import os
import signal
import sys

TYPE_CHECKING = False  # of `typing`, which takes its time to load
if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130  # the exit code, as a shell tells of a signal
AGAIN_SECONDS = 0.01


def begin(load: "Callable[[], Callable[[], int]]") -> int:
    """Load a command and run it; returns its exit code."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # in the background it may be ignored
    if heeds:
        signal.signal(signal.SIGINT, lambda sign, frame: os._exit(INTERRUPTED))
    run = load()
    try:
        if heeds:
            sys.unraisablehook = _not_lost
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


def _not_lost(unraisable: "sys.UnraisableHookArgs") -> None:
    """Ctrl-C in a callback that cannot raise, as imports have them, comes again where it can."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    from threading import Timer, main_thread

    Timer(AGAIN_SECONDS, signal.pthread_kill, (main_thread().ident, signal.SIGINT)).start()
