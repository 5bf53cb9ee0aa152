"""`python -m benchmarks.growth`: how a decode step grows with the batch and with the context, beside its floor.

The engine decodes with every request at the same context: first batches of 1 to 256 at one context, then contexts of
64 to 4,096 in one batch. Each figure is the median of some steps; the floor is that of `benchmarks.peers.floor` for
the same step, measured right after it. It knows no attention, so it does not grow with the context.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.compare import Progress, facts_of, tell_if_busy, written
from benchmarks.figures import Spread
from benchmarks.messages import Do, Facts, Settings, StepShape
from benchmarks.options import PLOTS, check_files
from benchmarks.participants import PeerError, Worker
from benchmarks.report import machine, shown, write_svg
from benchmarks.works import Dice, Work
from engine.cli import between
from engine.config import DEFAULT_MODEL

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096)
BLOCK = 16  # slots of a KV block, the engine's default
SPARE_BLOCKS = 4  # of each request: a copied tail, and the steps before all decode


class Point(msgspec.Struct, frozen=True):
    """Seconds of a decode step of `batch` requests with about `context` tokens each, and of its products alone."""

    batch: int
    context: int
    step: Spread
    floor: float
    parts: dict[str, float]  # mean seconds of a step

    @property
    def ratio(self) -> float:
        return self.floor / self.step.median


class Growth(msgspec.Struct, frozen=True):
    batches: list[Point]
    contexts: list[Point]


def kv_memory(places: Sequence[tuple[int, int]], steps: int, bytes_per_token: int) -> int:
    """Bytes of KV that the largest of (batch, context) needs, and some blocks more."""
    slots = max(batch * (context + steps + SPARE_BLOCKS * BLOCK) for batch, context in places)
    return (slots + 64 * BLOCK) * bytes_per_token


async def measure(arguments: argparse.Namespace, progress: Progress, growth: Growth) -> Facts:
    """Fill `growth` point by point; raises PeerError."""
    over_batches = [(batch, arguments.context) for batch in BATCHES if batch <= arguments.max_batch]
    over_contexts = [(arguments.batch, context) for context in CONTEXTS if context <= arguments.max_context]
    settings = Settings(arguments.model, arguments.dtype, 1, 512)
    async with facts_of(settings, progress.at("looking the model up")) as facts:
        pass
    longest = (
        max(arguments.context, *(context for _, context in over_contexts)) + arguments.steps + SPARE_BLOCKS * BLOCK
    )
    if longest > facts.max_model_len:
        raise PeerError(f"the model's own longest context is {facts.max_model_len} tokens; {longest} are needed")
    places = over_batches + over_contexts
    batches = [batch for batch, _ in places]
    settings = msgspec.structs.replace(
        settings,
        kv_memory=kv_memory(places, arguments.steps, facts.kv_bytes_per_token),
        max_num_seqs=max(batches),
        max_num_batched_tokens=max(512, 2 * max(batches)),
    )
    engine, floor = Worker("engine", "decode", settings), Worker("floor", "floor", settings)
    try:
        for peer in (engine, floor):
            await peer.start(progress.at(f"starting {peer.name}"))
        for points, batch, context in [
            *((growth.batches, *place) for place in over_batches),
            *((growth.contexts, *place) for place in over_contexts),
        ]:
            say = progress.at(f"batch {batch}, context {context}")
            dice = Dice(f"{batch} {context}", facts.vocab_size, 1.0)
            prompts = tuple(dice.prompt(context) for _ in range(batch))
            work = Work("growth", prompts, (arguments.steps,) * batch)
            run = await engine.do(Do(work), say)
            least = await floor.do(Do(work, schedule=(StepShape(batch, batch, 8),)), say)
            step = Spread.of(run.steps)
            assert step is not None
            point = Point(batch, context, step, least.seconds / 8, run.parts)
            points.append(point)
            progress.tell(f"batch {batch}, context {context}: {line(point)}")
    finally:
        await engine.stop()
        await floor.stop()
    return facts


def line(point: Point) -> str:
    return f"{point.step.median * 1e3:.2f} ms a step, floor {point.floor * 1e3:.2f} ms, floor / step {point.ratio:.2f}"


def table(title: str, points: Sequence[Point]) -> Table:
    found = Table(title=title, title_justify="left")
    for heading in ("batch", "context", "ms a step", "floor, ms", "floor / step", "attention"):
        found.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        attention = point.parts.get("attention")
        one = point.step
        milliseconds = Spread(one.median * 1e3, one.least * 1e3, one.most * 1e3, one.rounds)
        found.add_row(
            str(point.batch),
            f"{point.context:,}",
            shown(milliseconds),
            f"{point.floor * 1e3:.2f}",
            f"{point.ratio:.2f}",
            "" if attention is None else f"{attention * 1e3:.2f} ms",
        )
    return found


def plot(growth: Growth, width: int) -> Text:
    """Two charts: the step and its floor over the batch, and over the context; both axes logarithmic."""
    import plotext

    whole = Text()
    for points, axis in ((growth.batches, "batch"), (growth.contexts, "context")):
        if len(points) < 2:
            continue
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.plotsize(width, 18)
        x = [getattr(point, axis) for point in points]
        plotext.plot(x, [point.step.median * 1e3 for point in points], label="step, ms", marker="braille")
        plotext.plot(x, [point.floor * 1e3 for point in points], label="floor, ms", marker="dot")
        plotext.xscale("log")
        plotext.yscale("log")
        plotext.xticks(x, [f"{value:,}" for value in x])
        other = f"context {points[0].context}" if axis == "batch" else f"batch {points[0].batch}"
        plotext.title(f"a decode step over the {axis}, {other}")
        whole.append_text(Text.from_ansi(plotext.build()))
        whole.append("\n")
        plotext.clear_figure()
    return whole


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size}" for size in sizes)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, help="as paged-engine takes it (default: %(default)s)")
    add("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto", help="default: %(default)s")
    add("--context", type=between(1), default=256, metavar="N", help="while the batch grows (default: 256)")
    add("--batch", type=between(1, 4096), default=8, metavar="N", help="while the context grows (default: 8)")
    add("--max-batch", type=between(1), default=BATCHES[-1], metavar="N", help=f"of {_listed(BATCHES)} (default: all)")
    add("--max-context", type=between(CONTEXTS[0]), default=CONTEXTS[-1], metavar="N", help=f"of {_listed(CONTEXTS)}")
    add("--steps", type=between(1, 10_000), default=20, metavar="N", help="measured for each (default: 20)")
    add("--json", type=Path, metavar="FILE", help="write the figures here")
    add("--plot", type=Path, metavar="FILE", help=f"write the plot here: {' or '.join(PLOTS)}")
    arguments = parser.parse_args(argv)
    check_files(parser, arguments)
    growth, errors, console = Growth([], []), Console(stderr=True), Console()
    tell_if_busy(errors)
    code = 0
    try:
        with Progress(errors) as progress:
            asyncio.run(measure(arguments, progress, growth))
    except KeyboardInterrupt:
        errors.print("interrupted: what follows was measured until then", highlight=False)
        code = 130
    except PeerError as error:
        errors.print(f"benchmarks.growth: error: {error}", highlight=False, markup=False)
        code = 1
    if growth.batches:
        console.print(table("decode steps over the batch, median (least..most)", growth.batches))
    if growth.contexts:
        console.print(table("decode steps over the context", growth.contexts))
    picture = plot(growth, 100)
    console.print(picture)

    def write_json(path: Path) -> None:
        found = {"machine": machine(), "model": arguments.model, **msgspec.to_builtins(growth)}
        path.write_text(json.dumps(found, indent=1) + "\n")

    def write_plot(path: Path) -> None:
        if path.suffix == ".txt":
            path.write_text(picture.plain)
        else:
            write_svg(picture, path, "benchmarks.growth")

    for path, write in ((arguments.json, write_json), (arguments.plot, write_plot)):
        if path is not None:
            code = written(path, write, errors, "benchmarks.growth") or code
    return code


if __name__ == "__main__":
    sys.exit(main())
