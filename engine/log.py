"""Log lines of both processes, on standard error: as text for a person, or one JSON object each.

Fields are given as `extra={"fields": {...}}`. No prompt, no answer and no key is ever logged.
"""

from __future__ import annotations

import logging
import sys


def configure(format: str, level: str) -> None:
    """Set up the root logger of this process."""
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format="%(message)s", force=True)
