"""`python -m benchmarks.compare`: the same work, in one run, on this engine, its peers and the floor.

| participant | |
| --- | --- |
| offline | this engine in a process of its own, stepped without HTTP |
| floor | the bare matrix products of the very steps that `offline` ran |
| static | `offline` with static batching (ragged) |
| http | `paged-engine serve`, started here, over `/v1/completions` |
| generate | transformers' `generate`: static batches, the best size of those tried |
| generate_batch | transformers' continuous batching (slow: on ragged and shared-prefix only if `--only` names it) |
| NAME | whatever OpenAI-compatible server `--server NAME=URL` names; it must take token ids and `ignore_eos` |

They take turns, round after round, and ratios are taken within a round: the speed of a machine drifts. Each warms up
with a short piece of each work first. Prompts are random and new in each round. Requests are sent all at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import Rounds
from benchmarks.messages import Facts, Run, Settings
from benchmarks.options import Options, parse
from benchmarks.participants import Participant, PeerError, Serve, Server, Static, Worker
from benchmarks.report import Results
from benchmarks.works import Work, make_work
from engine.threads import physical_cores

WARM_REQUESTS, WARM_TOKENS = 64, 8
ROUND_TIMEOUT = 3600.0  # seconds that one participant may take for one work


class Progress:
    """One line at the bottom of a terminal, or a line for each run without one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal else None
        self._begun = time.monotonic()

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def at(self, what: str) -> Callable[[str], None]:
        """A way to say how far `what` is."""
        begun = time.monotonic()

        def say(text: str) -> None:
            if self._status is not None:
                self._status.update(f"{what}: {text}, {time.monotonic() - begun:.0f} s")

        say("...")
        return say

    def tell(self, text: str) -> None:
        self._console.print(
            f"{time.monotonic() - self._begun:6.0f} s  {text}", highlight=False, markup=False, soft_wrap=True
        )


class Comparison:
    """Everyone who takes part, and what they did. Who fails a work is out of it, and the rest goes on."""

    def __init__(self, options: Options, progress: Progress, results: Results) -> None:
        self.options, self.progress, self.results = options, progress, results
        settings = options.settings
        offline = Worker("offline", "offline", settings)
        self.serve = Serve(settings, options.stream)
        self.participants: dict[str, Participant] = {
            "offline": offline,
            "floor": Worker("floor", "floor", settings),
            "static": Static(offline),
            "http": self.serve,
            "generate": Worker("generate", "generate", settings),
            "generate_batch": Worker("generate_batch", "generate_batch", settings),
            **{name: Server(name, url, options.stream) for name, url in options.servers.items()},
        }

    async def run(self) -> None:
        facts = self.results.facts
        assert facts is not None
        for work in self.options.works:
            rounds: Rounds = []
            self.results.works[work] = rounds
            names = await self._warmed(work, self.options.participants(work), facts)
            for number in range(self.options.repeats):
                rounds.append({})
                made = self._work(work, number, facts)
                for name in tuple(names):
                    label = f"{work} {number + 1}/{self.options.repeats} {name}"
                    run = await self._one(name, made, rounds[-1].get("offline"), label)
                    if run is None:
                        names.remove(name)
                    else:
                        rounds[-1][name] = run
                        self.progress.tell(f"{label}: {told(run)}")
                self.results.peak_bytes = self.serve.peak_bytes

    def _work(self, name: str, number: int | str, facts: Facts) -> Work:
        return make_work(name, f"{self.options.seed} {number}", facts.vocab_size, self.options.scale)

    async def _warmed(self, work: str, names: Sequence[str], facts: Facts) -> list[str]:
        """Those who could start and do a short piece of the work."""
        warm = self._work(work, "warm", facts).cut(WARM_REQUESTS, WARM_TOKENS)
        able = []
        for name in names:
            if name == "floor" or (name == "static" and "offline" in able):
                label = f"{work}: starting {name}"
                started = await self._guarded(name, label, self.participants[name].start(self.progress.at(label)))
                able += [name] if started else []
            elif await self._one(name, warm, None, f"{work}: warming {name} up") is not None:
                able.append(name)
        return able

    async def _one(self, name: str, work: Work, offline: Run | None, label: str) -> Run | None:
        say = self.progress.at(label)
        participant = self.participants[name]
        schedule = () if offline is None else offline.schedule
        found: list[Run] = []

        async def do() -> None:
            if name == "floor" and not schedule:
                raise PeerError("it needs the steps that offline ran")
            await participant.start(say)
            found.append(await participant.run(work, schedule, say))

        await self._guarded(name, label, do())
        return found[0] if found else None

    async def _guarded(self, name: str, label: str, doing: Coroutine[Any, Any, None]) -> bool:
        """Whether it was done; a participant that could not is told of and stopped."""
        try:
            await asyncio.wait_for(doing, ROUND_TIMEOUT)
        except (PeerError, TimeoutError) as error:
            reason = str(error) or f"took more than {ROUND_TIMEOUT:.0f} s"
            self._out(label.partition(" ")[0].rstrip(":"), name, reason)
            await self.participants[name].stop()
            return False
        return True

    def _out(self, work: str, name: str, reason: str) -> None:
        self.results.failed.setdefault(work, {})[name] = reason
        self.progress.tell(f"{work}: {name} is out: {reason}")

    async def stop(self) -> None:
        for participant in self.participants.values():
            await participant.stop()


def told(run: Run) -> str:
    """One run, as a line says it."""
    text = f"{run.seconds:.2f} s, {run.output_rate:.1f} output tokens/s"
    if run.token_seconds is not None:
        text += f", {run.token_seconds * 1e3:.2f} ms per token"
    return f"{text} ({run.note})" if run.note else text


@asynccontextmanager
async def facts_of(settings: Settings, say: Callable[[str], None]) -> AsyncIterator[Facts]:
    """What is known of the model. Raises PeerError if it cannot be loaded."""
    finder = Worker("facts", "facts", settings)
    try:
        await finder.start(say)
        assert finder.facts is not None
        yield finder.facts
    finally:
        await finder.stop()


async def compare(options: Options, progress: Progress, results: Results) -> None:
    """Fill `results` as far as it gets; raises PeerError if the model cannot be loaded."""
    async with facts_of(options.settings, progress.at("looking the model up")) as facts:
        results.facts = facts
    comparison = Comparison(options, progress, results)
    try:
        await comparison.run()
    finally:
        await comparison.stop()


def tell_if_busy(console: Console) -> None:
    """Figures of a machine that does other work too are worth little: threads that wait for each other wait long."""
    load, cores = os.getloadavg()[0], physical_cores()
    if load > 0.5 * cores:
        console.print(f"this machine is busy (load {load:.1f}, {cores} cores): ratios will be off", highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    console = Console(stderr=True)
    tell_if_busy(console)
    results = Results(options)
    code = 0
    try:
        with Progress(console) as progress:
            asyncio.run(compare(options, progress, results))
    except KeyboardInterrupt:
        console.print("interrupted: what follows was measured until then", highlight=False)
        code = 130
    except PeerError as error:
        console.print(f"benchmarks.compare: error: {error}", highlight=False, markup=False)
        return 1
    results.show(Console(soft_wrap=not sys.stdout.isatty()))
    for path, write in ((options.json, results.write_json), (options.plot, results.write_plot)):
        if path is not None:
            code = written(path, write, console, "benchmarks.compare") or code
    return code or int(bool(results.failed))


def written(path: Path, write: Callable[[Path], None], console: Console, program: str) -> int:
    """Write a file of figures; the exit code, 1 where that cannot be, after a line that says so."""
    try:
        write(path)
    except OSError as error:
        console.print(f"{program}: error: {path} cannot be written: {error.strerror}", markup=False)
        return 1
    return 0


def written_json(path: Path, figures: object, console: Console, program: str) -> int:
    """Write figures as JSON; the exit code, as `written` has it."""

    def write(path: Path) -> None:
        path.write_text(json.dumps(figures, indent=1) + "\n")

    return written(path, write, console, program)


if __name__ == "__main__":
    sys.exit(main())
