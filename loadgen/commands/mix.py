"""`loadgen mix`: make a trace of short chats among long prompts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.options import EXIT_BAD_INPUT, Commands, OptionAdder, positive_float, positive_int, whole_number, yes_or_no

if TYPE_CHECKING:
    from loadgen.mix import Lengths

TURNS = 1000  # of a user: more than any run is long
ABOUT = (
    "Make a trace of short chats while long prompts arrive, each of exact lengths. A run of it tells the latencies of "
    "both apart; `loadgen compare FILE --a pools=colocated --b pools=separated` says what separated pools make of it."
)


def add_parser(commands: Commands) -> None:
    """Its options."""
    parser = commands.add_parser("mix", help="make a trace of short chats among long prompts", description=ABOUT,
                                 allow_abbrev=False)  # fmt: skip
    parser.set_defaults(run=run)
    add = OptionAdder(parser, "LOADGEN_MIX_")
    add("--out", Path, Path("mix.jsonl"), "file to write (default: mix.jsonl)", metavar="FILE")
    add("--seconds", positive_float, 120.0, "in which they come (default: 120)", metavar="S")
    add("--chat-rate", positive_float, 1.0, "chats a second, at random (default: 1)", metavar="R")
    users = "instead: N users at any time, each next chat as soon as the last is answered; end it with --until time=S"
    add("--chat-users", positive_int, None, users, metavar="N")
    add("--chat-prompt", _lengths, None, "tokens of a chat's prompt (default: 64..192)", metavar="N..M")
    add("--chat-output", _lengths, None, "tokens of its answer (default: 64..128)", metavar="N..M")
    add("--long-rate", positive_float, 0.1, "long prompts a second (default: 0.1)", metavar="R")
    add("--long-prompt", _lengths, None, "their tokens (default: 3000)", metavar="N..M")
    add("--long-output", _lengths, None, "tokens of the answers to these (default: 8)", metavar="N..M")
    add("--even", yes_or_no, False, "long prompts come at even intervals, not at random")
    add("--seed", whole_number, 0, "of moments and lengths (default: 0)", metavar="N")


def _lengths(text: str) -> Lengths:
    from loadgen.mix import Lengths, MixError

    least, _, most = text.partition("..")
    try:
        return Lengths(int(least), int(most or least))
    except MixError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected tokens as in 3000 or 64..192, got {text!r}") from None


def run(options: argparse.Namespace) -> int:
    """Write the trace."""
    from loadgen.mix import Kind, Lengths, Mix, MixError, mixed
    from loadgen.synth import write_trace

    try:
        mix = Mix(
            chats=Kind(
                options.chat_rate,
                options.chat_prompt or Lengths(64, 192),
                options.chat_output or Lengths(64, 128),
                options.chat_users,
                1 if options.chat_users is None else TURNS,
            ),
            long=Kind(
                options.long_rate, options.long_prompt or Lengths(3000, 3000), options.long_output or Lengths(8, 8)
            ),
            seconds=options.seconds,
            seed=options.seed,
            even=options.even,
        )
        header, sessions = mixed(mix)
        write_trace(header, sessions, options.out)
    except MixError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except OSError as error:
        print(f"loadgen: --out {options.out}: cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_BAD_INPUT
    long = sum(session.session.startswith("long") for session in sessions)
    chats = f"{len(sessions) - long} {'chats' if options.chat_users is None else 'users'}"
    print(f"{options.out}: {chats}, {long} long prompts")
    return 0
