"""Keys that clients show: read from the command line, the environment or a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def read_keys(given: Sequence[str] | None, file: str | None, flag: str) -> tuple[str, ...]:
    """The keys of an option and of its file, one a line. Raises ArgumentTypeError that names the flag."""
    keys = list(given or ())
    if file is not None:
        try:
            lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentTypeError(f"{flag}-file: cannot read {file}: {error}") from None
        keys += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return tuple(keys)
