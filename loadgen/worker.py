"""A client process of a run, `python -m loadgen.worker`: orders come on standard input, what happens goes out."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

from loadgen.live.tally import Tally
from loadgen.outcome import RequestRecord
from loadgen.pace import Pace
from loadgen.player import Controls, play
from loadgen.self_watch import SelfWatch
from loadgen.session import Budget
from loadgen.workers import (
    API_KEY,
    COUNTS_EVERY,
    Drain,
    Failed,
    Finished,
    Message,
    Order,
    Ready,
    Speed,
    Start,
    Stop,
    Told,
    decode_order,
    encode,
)


def _tell(message: Message) -> None:
    sys.stdout.buffer.write(encode(message) + b"\n")


def _obey(order: Order, controls: Controls) -> None:
    match order:
        case Speed(speed, at):
            controls.pace.set_speed(speed, at)
        case Drain():
            controls.drain()
        case Stop():
            controls.stop.set()
        case Start():
            raise ValueError("already started")


async def _orders() -> asyncio.StreamReader:
    """Standard input as lines."""
    reader = asyncio.StreamReader(limit=2**26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _work() -> None:
    orders = await _orders()
    _tell(Ready())
    sys.stdout.buffer.flush()
    line = await orders.readline()
    if not line:
        return  # nobody wants it any more
    start = decode_order(line)
    assert isinstance(start, Start)
    controls = Controls(Pace(start.job.settings.speed))
    if start.budget is not None:
        controls.budget = Budget(start.budget)
    tally, watch = Tally(), SelfWatch()

    async def listen() -> None:
        while line := await orders.readline():
            _obey(decode_order(line), controls)
        controls.stop.set()  # whoever started this is gone

    async def tell() -> None:
        while True:
            await asyncio.sleep(COUNTS_EVERY)
            _tell(Told(tally.counts(), watch.figures()))
            sys.stdout.buffer.flush()

    def report(record: RequestRecord) -> None:
        _tell(record)

    helpers = [asyncio.create_task(watch.run()), asyncio.create_task(listen()), asyncio.create_task(tell())]
    try:
        await play(start.job, controls, tally, report, start.begin, start.zero, os.environ.get(API_KEY))
        _tell(Told(tally.counts(), watch.figures()))
        _tell(Finished(watch.figures()))
    except Exception as error:
        _tell(Failed(f"client process {start.job.worker}: {type(error).__name__}: {error}"))
        raise
    finally:
        for helper in helpers:
            helper.cancel()


def main() -> None:
    """Play one job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(BrokenPipeError):
        asyncio.run(_work())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
