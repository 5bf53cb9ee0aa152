"""`loadgen synth`: make traces/chat500.jsonl again, bit for bit."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadgen.options import EXIT_BAD_INPUT, Commands, OptionAdder, positive_int, whole_number


def add_parser(commands: Commands) -> None:
    """Its options."""
    parser = commands.add_parser("synth", help="make traces/chat500.jsonl again, bit for bit", allow_abbrev=False)
    parser.set_defaults(run=run)
    add = OptionAdder(parser, "LOADGEN_SYNTH_")
    add("--out", Path, Path("traces/chat500.jsonl"), "file to write (default: traces/chat500.jsonl)", metavar="FILE")
    add("--excerpt", Path, None, "records to follow (default: traces/azure_conv_excerpt.csv)", metavar="FILE")
    add("--seed", whole_number, None, "seed (default: that of chat500.jsonl)", metavar="N")
    add("--sessions", positive_int, None, "how many sessions (default: 500)", metavar="N")


def run(options: argparse.Namespace) -> int:
    """Write the trace."""
    from loadgen import synth
    from loadgen.traces.model import TraceError

    try:
        excerpt = synth.read_excerpt(options.excerpt or synth.DEFAULT_EXCERPT)
        count = synth.DEFAULT_SESSIONS if options.sessions is None else options.sessions
        seed = synth.DEFAULT_SEED if options.seed is None else options.seed
        header, sessions = synth.synthesize(excerpt, count, seed)
        synth.write_trace(header, sessions, options.out)
    except TraceError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except OSError as error:
        print(f"loadgen: --out {options.out}: cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_BAD_INPUT
    turns = sum(len(session.turns) for session in sessions)
    print(f"{options.out}: {len(sessions)} sessions, {turns} turns")
    return 0
