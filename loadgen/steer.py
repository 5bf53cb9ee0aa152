"""Steering a replay while it runs: lines on standard input, `speed X` or `stop`, from whoever started it."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console

from loadgen.options import positive_float

_STDIN = 0  # read raw: a thread that waits in sys.stdin would hold its lock when the program ends
_CHUNK = 4096


class SteerError(ValueError):
    """A line that is no order; the message says what one is."""


def order(line: str) -> float | None:
    """The speed that a line asks for, or None for `stop`. Raises SteerError."""
    match line.split():
        case ["stop"]:
            return None
        case ["speed", text]:
            try:
                return positive_float(text)
            except argparse.ArgumentTypeError as error:
                raise SteerError(f"speed: {error}") from None
    raise SteerError(f"expected 'speed X' or 'stop', got {line[:80]!r}")


def obey(line: str, set_speed: Callable[[float], None], console: Console) -> None:
    """Do what a line asks for, and tell what holds now. `stop` is Ctrl-C."""
    try:
        speed = order(line)
    except SteerError as error:
        console.print(f"steer: {error}", markup=False, highlight=False, soft_wrap=True)
        return
    if speed is None:
        signal.raise_signal(signal.SIGINT)
        return
    set_speed(speed)
    console.print(f"steer: speed {speed:g}", highlight=False, soft_wrap=True)


def listen(take: Callable[[str], None]) -> None:
    """Give every line of standard input to `take` in the running loop, to its end or that of the program."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        rest = b""
        with suppress(OSError, RuntimeError):  # there is no standard input, or the loop has ended
            while chunk := os.read(_STDIN, _CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    loop.call_soon_threadsafe(take, line.decode("utf-8", "replace"))

    threading.Thread(target=read, name="steer", daemon=True).start()
