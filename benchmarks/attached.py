"""`python -m benchmarks.attached`: what an engine loses to those who watch it.

An engine is started and given bursts of requests over HTTP while nobody watches, one paged-top in a terminal, ten, or
a plain reader of the step stream (`reader`; `stopped` never reads on). They take turns within each round, and ratios
are of the same round, so that drift of the machine falls on all alike.

Screens need processors too, and here they compete with the engine for the same ones. So two things are told: what is
left of the throughput, and what the engine's own processes (the core, which steps, and the server, which hands records
out) spend on a token: that is what the engine itself loses. Answers are not streamed, so that the client needs little.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.compare import tell_if_busy, written_json
from benchmarks.figures import Spread
from benchmarks.options import check_file
from benchmarks.report import machine, shown
from benchmarks.streaming import complete
from benchmarks.watchers import WatcherError, attached, cpu_seconds, watchers
from benchmarks.works import Work, make_work
from engine.cli import between
from engine.config import DEFAULT_MODEL
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from loadgen.engine_process import process_tree

NOBODY = "0"
SETTLE = 1.0  # seconds from when all follow to the burst: what they do at their start is not measured
PROGRAM = "benchmarks.attached"


class Burst(msgspec.Struct, frozen=True):
    """One burst: what was made, how long it took, and the CPU seconds that each side spent meanwhile."""

    tokens: int
    seconds: float
    step: float | None  # median seconds from one decode step of the whole batch to the next
    core_cpu: float
    server_cpu: float
    screens_cpu: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


Rounds = list[dict[str, Burst]]  # by kind of watchers


class Figures(msgspec.Struct, frozen=True):
    """Of one kind of watchers over the rounds; ratios are to nobody's in the same round."""

    rate: Spread  # output tokens a second
    rate_ratio: Spread | None
    step_ratio: Spread | None
    core_cpu: Spread  # CPU seconds of the core's process, for each output token
    core_cpu_ratio: Spread | None
    server_cpu: Spread
    server_cpu_ratio: Spread | None
    screens_cores: Spread  # processors that all screens together kept busy


def figures(rounds: Rounds, kind: str) -> Figures | None:
    """None where no round has the kind."""
    with_it = [done for done in rounds if kind in done]
    if not with_it:
        return None

    def over(value: Callable[[Burst], float]) -> Spread:
        found = Spread.of([value(done[kind]) for done in with_it])
        assert found is not None, "there are rounds"
        return found

    def ratio(value: Callable[[Burst], float | None]) -> Spread | None:
        pairs = [(value(done[kind]), value(done[NOBODY])) for done in with_it if NOBODY in done]
        return Spread.of([above / below for above, below in pairs if above is not None and below])

    return Figures(
        over(lambda burst: burst.rate),
        ratio(lambda burst: burst.rate),
        ratio(lambda burst: burst.step),
        over(lambda burst: burst.core_cpu / burst.tokens),
        ratio(lambda burst: burst.core_cpu / burst.tokens),
        over(lambda burst: burst.server_cpu / burst.tokens),
        ratio(lambda burst: burst.server_cpu / burst.tokens),
        over(lambda burst: burst.screens_cpu / burst.seconds),
    )


def decode_step(records: Sequence[dict[str, Any]]) -> float | None:
    """The median time between steps in which the largest batch decodes; None where there are too few."""
    sizes = [len(r["rows"]) if {row["kind"] for row in r["rows"]} == {"decode"} else 0 for r in records]
    full = [record["time"] for record, size in zip(records, sizes, strict=True) if size and size == max(sizes)]
    gaps = [after - before for before, after in itertools.pairwise(full)]
    return statistics.median(gaps) if gaps else None


async def measure(
    url: str, engine: int, kinds: Sequence[str], works: Callable[[str], Work], count: int, rounds: Rounds
) -> None:
    """Fill `rounds` one by one. `engine` is its server's process. Raises WatcherError."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as http:
        await complete(http, url, "", works("warm"), False, _silent)
        for turn in range(count):
            rounds.append({})
            start = turn % len(kinds)
            for kind in (*kinds[start:], *kinds[:start]):
                async with attached(http, url, kind) as screens:
                    await asyncio.sleep(SETTLE)
                    pids = [pid for screen in screens for pid in screen.pids]
                    burst = await _burst(http, url, engine, pids, works(f"{turn} {kind}"))
                    for screen in screens:
                        screen.check()
                rounds[-1][kind] = burst
                print(f"round {turn + 1}/{count}, watchers {kind}: {burst.rate:.1f} output tokens/s", file=sys.stderr)


async def _burst(http: aiohttp.ClientSession, url: str, engine: int, screens: Sequence[int], work: Work) -> Burst:
    core = [pid for pid in process_tree(engine) if pid != engine]
    first = await _seq(http, url) + 1
    before = [cpu_seconds(pids) for pids in (core, [engine], screens)]
    run = await complete(http, url, "", work, False, _silent)
    after = [cpu_seconds(pids) for pids in (core, [engine], screens)]
    used = [end - begin for begin, end in zip(before, after, strict=True)]
    return Burst(run.output_tokens, run.seconds, decode_step(await _records(http, url, first)), *used)


async def _seq(http: aiohttp.ClientSession, url: str) -> int:
    async with http.get(f"{url}/engine/requests") as response:
        response.raise_for_status()
        return int(json.loads(await response.read())["seq"])


async def _records(http: aiohttp.ClientSession, url: str, first: int) -> list[dict[str, Any]]:
    """Those from `first` on that have been made."""
    last, records = await _seq(http, url), []
    async with http.get(f"{url}/engine/steps", params={"from": first}) as response:
        async for line in response.content:
            if line.startswith(b"data: "):
                record = json.loads(line.removeprefix(b"data: "))
                records += [record] if record["type"] == "step" else []
                if record.get("seq", last) >= last:
                    return records
    return records


def _silent(text: str) -> None:
    pass


@contextmanager
def serving(model: str) -> Iterator[tuple[str, int]]:
    """An engine: its URL and its server's process. Raises WatcherError if it does not start; it has said why."""
    command = [sys.executable, "-m", "engine.cli", "serve", "--model", model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        try:
            assert engine.stdout is not None
            words = engine.stdout.readline().split()
            if not words:
                raise WatcherError("the engine did not start")
            yield next(word for word in words if word.startswith("http://")), engine.pid
        finally:
            engine.terminate()


def table(found: dict[str, Figures]) -> Table:
    """A column for each kind of watchers."""
    made = Table(title="median (least..most); ratios to nobody in the same round", title_justify="left")
    made.add_column("watchers", no_wrap=True)
    for kind in found:
        made.add_column(kind, justify="right")
    ones = found.values()
    made.add_row("output tokens/s", *(shown(one.rate) for one in ones))
    made.add_row("  ratio", *(_three(one.rate_ratio) for one in ones))
    made.add_row("a decode step, ratio", *(_three(one.step_ratio) for one in ones))
    made.add_row("core, CPU ms/token", *(shown(_milliseconds(one.core_cpu)) for one in ones))
    made.add_row("  ratio", *(_three(one.core_cpu_ratio) for one in ones))
    made.add_row("server, CPU ms/token", *(shown(_milliseconds(one.server_cpu)) for one in ones))
    made.add_row("  ratio", *(_three(one.server_cpu_ratio) for one in ones))
    screens = (shown(one.screens_cores) if kind.isdecimal() else "—" for kind, one in found.items())
    made.add_row("screens, CPUs busy", *screens)
    return made


def _milliseconds(seconds: Spread) -> Spread:
    return Spread(seconds.median * 1e3, seconds.least * 1e3, seconds.most * 1e3, seconds.rounds)


def _three(ratio: Spread | None) -> str:
    """Three places: the aim is a few percent."""
    if ratio is None:
        return "—"
    text = f"{ratio.median:.3f}"
    return text if ratio.rounds == 1 else f"{text} ({ratio.least:.3f}..{ratio.most:.3f})"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attached", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument(
        "--watchers", default="0,1,10,reader", help="numbers of paged-tops, reader, stopped (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=between(1, 1000), default=5, help="(default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="makes bursts smaller, for a trial")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures, and each burst")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    check_file(parser, "--json", arguments.json)
    try:
        kinds = watchers(arguments.watchers)
        vocabulary = resolve_model(arguments.model).config.vocab_size
    except ValueError as error:
        parser.error(f"--watchers: {error}")
    except ModelError as error:
        parser.error(str(error))
    console, errors = Console(), Console(stderr=True)
    tell_if_busy(errors)
    rounds: Rounds = []
    code, begun = 0, time.time()

    def works(seed: str) -> Work:
        return make_work("burst", f"{begun} {seed}", vocabulary, arguments.scale)

    try:
        with serving(arguments.model) as (url, engine):
            asyncio.run(measure(url, engine, kinds, works, arguments.rounds, rounds))
    except KeyboardInterrupt:
        errors.print("interrupted: what follows was measured until then", highlight=False)
        code = 130
    except (WatcherError, aiohttp.ClientError, ValueError) as error:
        errors.print(f"{PROGRAM}: error: {error}", highlight=False, markup=False)
        code = 1
    found = {kind: one for kind in kinds if (one := figures(rounds, kind)) is not None}
    if found:
        console.print(table(found))
    if arguments.json is not None:
        whole = {"machine": machine(), "model": arguments.model, "watchers": found, "rounds": rounds}
        code = written_json(arguments.json, msgspec.to_builtins(whole), errors, PROGRAM) or code
    return code


if __name__ == "__main__":
    sys.exit(main())
