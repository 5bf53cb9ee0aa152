"""Where the `paged-engine` program begins: nothing is loaded before Ctrl-C is quiet."""

import sys

from engine.beginning import begin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    """Load the command and run it; returns its exit code."""
    return begin(_load)


def _load() -> "Callable[[], int]":
    from engine.cli import main as run

    return run


if __name__ == "__main__":
    sys.exit(main())
