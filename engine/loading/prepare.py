"""`python -m engine.loading.prepare [MODEL]`: do once what the first start of an engine would wait for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from engine.config import DEFAULT_MODEL
from engine.loading.cache import tell
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.threads import set_threads


def prepare(model: str) -> None:
    """Fetch or convert `model`, and build a small engine, which compiles what the kernels keep on disk."""
    set_threads()
    resolved = resolve_model(model)
    from engine.build import warm_up

    warm_up(model)
    tell(f"paged-engine: {model} is ready in {resolved.folder}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.loading.prepare", description=__doc__)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    try:
        prepare(parser.parse_args(arguments).model)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
