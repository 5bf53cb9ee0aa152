"""A client process of a run, `python -m loadgen.worker`: orders come on standard input, what happens goes out."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

from loadgen.garbage import frozen
from loadgen.live.tally import Tally
from loadgen.pace import Pace
from loadgen.player import Controls, Player
from loadgen.self_watch import SelfWatch
from loadgen.text.tokenizer import TokenizerError
from loadgen.traces.model import TraceError
from loadgen.workers import (
    COUNTS_EVERY,
    Begin,
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
    access_of,
    decode_order,
    encode,
)


def _tell(message: Message) -> None:
    sys.stdout.buffer.write(encode(message) + b"\n")


def _obey(order: Order, controls: Controls, begins: asyncio.Future[Begin]) -> None:
    match order:
        case Begin():
            begins.set_result(order)
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
    line = await orders.readline()
    if not line:
        return  # nobody wants it any more
    start = decode_order(line)
    assert isinstance(start, Start)
    job = start.job
    controls = Controls(Pace(start.speed), job.limits.open_budget())
    tally, watch = Tally(), SelfWatch()
    begins: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()

    async def listen() -> None:
        while line := await orders.readline():
            _obey(decode_order(line), controls, begins)
        controls.stop.set()  # whoever started this is gone
        begins.cancel()

    async def tell() -> None:
        while True:
            await asyncio.sleep(COUNTS_EVERY)
            _tell(Told(tally.counts(), watch.figures()))
            sys.stdout.buffer.flush()

    helpers = [asyncio.create_task(listen())]
    try:
        async with Player(job, controls, tally, _tell, access_of(job, os.environ)) as player:
            with frozen():
                _tell(Ready())
                sys.stdout.buffer.flush()
                begin = await begins
                watch = SelfWatch()
                helpers += [asyncio.create_task(watch.run()), asyncio.create_task(tell())]
                await player.play(begin.at, begin.zero)
        _tell(Told(tally.counts(), watch.figures()))
        _tell(Finished(watch.figures()))
    except (TraceError, TokenizerError) as error:
        _tell(Failed(f"client process {job.worker}: {error}"))
    except Exception as error:
        _tell(Failed(f"client process {job.worker}: {type(error).__name__}: {error}"))
        raise
    finally:
        for helper in helpers:
            helper.cancel()


def main() -> None:
    """Play one job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(BrokenPipeError, asyncio.CancelledError):  # whoever started this is gone
        asyncio.run(_work())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
