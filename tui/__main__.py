"""Where the `paged-top` program begins, quiet from its first statement on: Ctrl-C while it loads is no fault."""

import os
import signal
import sys

INTERRUPTED = 130  # the exit code, as a shell tells of a signal
AGAIN_SECONDS = 0.01


def main() -> int:
    """Load the command and run it; returns its exit code."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # in the background it may be ignored
    if heeds:
        signal.signal(signal.SIGINT, lambda sign, frame: os._exit(INTERRUPTED))
    from tui.cli import main as run

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


if __name__ == "__main__":
    sys.exit(main())
