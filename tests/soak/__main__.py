"""`python -m tests.soak`: see tests/soak/soak.py. Prints progress, then what was found; exit code 1 if anything was."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from tests.soak.soak import Found, Wanted, soak

MOST_GROWTH = 0.05
SETTLED = 5000  # requests after which memory may not grow


def main() -> int:
    defaults = Wanted()
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=defaults.requests)
    parser.add_argument("--kills", type=int, default=defaults.kills, help="of the engine's process")
    parser.add_argument("--clients", type=int, default=defaults.clients)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--json", metavar="FILE", help="for all figures")
    parser.add_argument("--serve", nargs="+", default=[], metavar="OPTION", help="more options, without their dashes")
    arguments = parser.parse_args()
    options = tuple(f"--{option}" if index % 2 == 0 else option for index, option in enumerate(arguments.serve))
    wanted = Wanted(arguments.requests, arguments.kills, arguments.clients, seed=arguments.seed, options=options)
    found = soak(wanted, lambda line: print(line, flush=True))
    if arguments.json:
        Path(arguments.json).write_bytes(msgspec.json.encode(found))
    return report(found)


def report(found: Found) -> int:
    print(f"\n{sum(found.endings.values()):,} requests in {found.seconds:.0f} s, {found.switches} switches:")
    for ending, count in found.endings.most_common():
        print(f"  {count:>7,} {ending}")
    if found.ready_after:
        print(f"kills: {len(found.ready_after)}; 503 after at most {max(found.unready_after):.2f} s, ", end="")
        print(f"serving again after at most {max(found.ready_after):.1f} s")
    print(f"records folded: {found.records:,}, gaps: {found.gaps}")
    growth = found.growth(SETTLED)
    files = {size.api_files for size in found.sizes}
    print(f"memory of the API process after {SETTLED:,} requests: {growth:+.1%}; files: {sorted(files)}")
    if growth > MOST_GROWTH:
        found.findings.append(f"memory grew by {growth:.1%}")
    for finding in found.findings[:20]:
        print(f"FOUND {finding}")
    print(f"findings: {len(found.findings)}")
    return 1 if found.findings else 0


if __name__ == "__main__":
    sys.exit(main())
