"""A participant's process: `python -m benchmarks.worker KIND SETTINGS`, settings and messages as JSON lines.

What the libraries print goes to standard error; the answers go to what was standard output.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import BinaryIO, Protocol

from benchmarks.messages import Do, Done, Facts, Failed, Ready, Run, Say, Settings, decode_do, decode_settings, encode
from engine.threads import physical_cores, set_threads

KINDS = {
    "facts": "benchmarks.peers.facts",
    "offline": "benchmarks.peers.offline",
    "decode": "benchmarks.peers.decode",
    "floor": "benchmarks.peers.floor",
    "generate": "benchmarks.peers.generate",
    "generate_batch": "benchmarks.peers.generate_batch",
}
SAY_EVERY = 1.0  # seconds


class Peer(Protocol):
    """What a module of `benchmarks.peers` makes of `Settings` with its `make`; one makes `Facts`, and is done."""

    def run(self, do: Do, say: Callable[[str], None]) -> Run: ...


def choose_threads(kind: str) -> None:
    """As many threads as cores for all. The engine's threads wait as the engine has them wait.

    Those of the others spin for some 0.1 ms before they sleep: long enough never to sleep within a step, and on a
    machine that does other work too they do not wait for each other at the scheduler's pace (measured there with the
    default, ten times as long: the floor took 20 times, `generate` 4 times as long).
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(physical_cores()))
    if kind in ("offline", "decode"):
        set_threads()
    else:
        os.environ.setdefault("GOMP_SPINCOUNT", "30000")


def serve(peer: Peer, lines: BinaryIO, out: BinaryIO) -> None:
    """Answer requests until there are no more."""

    def send(message: Say | Done | Failed) -> None:
        out.write(encode(message) + b"\n")
        out.flush()

    for line in lines:
        said = time.monotonic()

        def say(text: str) -> None:
            nonlocal said
            if time.monotonic() - said > SAY_EVERY:
                said = time.monotonic()
                send(Say(text))

        try:
            send(Done(peer.run(decode_do(line), say)))
        except Exception as error:
            send(Failed(f"{type(error).__name__}: {error}"))


def main() -> None:
    kind, settings = sys.argv[1], decode_settings(sys.argv[2].encode())
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    choose_threads(kind)
    try:
        make: Callable[[Settings], Peer | Facts] = importlib.import_module(KINDS[kind]).make
        peer = make(settings)
    except Exception as error:  # whatever it is, it is to be told and not to end the comparison
        out.write(encode(Failed(f"{type(error).__name__}: {error}")) + b"\n")
        out.flush()
        return
    facts = peer if isinstance(peer, Facts) else None
    out.write(encode(Ready(facts)) + b"\n")
    out.flush()
    if not isinstance(peer, Facts):
        serve(peer, sys.stdin.buffer, out)


if __name__ == "__main__":
    main()
