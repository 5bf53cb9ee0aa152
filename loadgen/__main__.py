"""Where the `loadgen` program begins, quiet from its first statement on: Ctrl-C while it loads is no fault."""

import os
import signal
import sys

INTERRUPTED = 130  # the exit code, as a shell tells of a signal


def main() -> int:
    """Load the command and run it; returns its exit code."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # in the background it may be ignored
    if heeds:
        signal.signal(signal.SIGINT, lambda sign, frame: os._exit(INTERRUPTED))
    from loadgen.cli import main as run

    try:
        if heeds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
