"""How long `paged-engine simulate` takes and how much memory, as the trace grows.

`python -m benchmarks.simulation TRACE [--requests 10000 100000] [--partial-hits]`. A Mooncake trace in blocks of 512 on
an infinite pool, repeated as new text; each size in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SETTINGS = ("--block-size", "512", "--infinite", "--max-num-batched-tokens", "8192")


def simulate(trace: Path, requests: int, partial_hits: bool) -> dict[str, Any]:
    """The prediction of `paged-engine simulate --json`. Raises CalledProcessError."""
    command = [sys.executable, "-m", "engine.cli", "simulate", str(trace), *SETTINGS, "--requests", str(requests)]
    if not partial_hits:
        command.append("--no-partial-hits")
    done = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--partial-hits", action="store_true", help="look for parts of blocks too")
    arguments = parser.parse_args(argv)
    print("requests      wall   a request     memory   a request")
    for requests in arguments.requests:
        cost = simulate(arguments.trace, requests, arguments.partial_hits)["simulation"]
        wall, memory = cost["wall_seconds"], cost["peak_memory_bytes"]
        print(
            f"{requests:>8,}{wall:>8.1f} s{wall / requests * 1e3:>9.2f} ms{memory / 2**20:>7,.0f} MiB"
            f"{memory / requests / 1024:>8.1f} KiB"
        )


if __name__ == "__main__":
    main()
