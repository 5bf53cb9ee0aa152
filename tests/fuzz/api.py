"""`python -m tests.fuzz.api`: malformed requests against a real server, from several clients at once.

Some are drawn by schemathesis from /openapi.json, the others are made by tests/fuzz/request_maker.py. All follows from
`--seed`. None may bring about an answer of 500 or more, an error that is not told in JSON, a hang, or a lasting change.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.attempt import ENDLESS, Answer, Attempt, Hangs, make
from tests.fuzz.by_schema import drawn
from tests.fuzz.request_maker import RequestMaker
from tests.fuzz.served import Served, Usage
from tests.fuzz.stated import Stated

HANG_SECONDS = 5.0
BY_SCHEMA = 0.4  # of all attempts
WARM_UP = 300  # attempts before memory and open files are measured
TOLD_EVERY = 1000  # attempts
MOST_FAILURES = 20
MEMORY_GROWTH = 1.15  # of the server's, from after the warm-up to the end
MEMORY_NOISE = 48 << 20  # bytes that it may have grown by in any case
_ERROR_FIELDS = {"message", "type", "param", "code"}


class Enough(Exception):
    """So much has failed that more would tell nothing."""


class Run:
    """One run's clients, counts and failures."""

    def __init__(self, served: Served, save: Path, seed: int, hang: float) -> None:
        self.served = served
        self.failures: list[str] = []
        self.statuses: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self.slowest = (0.0, "")  # seconds, and of what
        self._save, self._seed, self._hang = save, seed, hang
        self._stated = Stated(served.get("/openapi.json"))
        self._lock = threading.Lock()
        self._queue: queue.Queue[Attempt | None] = queue.Queue(64)
        self._began = time.monotonic()
        self._told = 0  # attempts, when progress was last told

    @property
    def done(self) -> int:
        return self.statuses.total()

    def start(self, clients: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        return threads

    def put(self, attempt: Attempt) -> None:
        """Raises Enough."""
        if len(self.failures) >= MOST_FAILURES:
            raise Enough
        self._queue.put(attempt)
        if self.done - self._told >= TOLD_EVERY:
            self._told = self.done
            seconds = time.monotonic() - self._began
            print(f"{self.done:,} requests, {self.done / seconds:.0f}/s, {len(self.failures)} failures", flush=True)

    def finish(self, threads: list[threading.Thread]) -> None:
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            thread.join()

    def idle(self) -> None:
        """Wait until all that was put has been answered."""
        self._queue.join()

    def _work(self) -> None:
        while (attempt := self._queue.get()) is not None:
            try:
                self.one(attempt)
            except Exception as error:  # a client must not end for it, nor the run wait for it
                self.fail(attempt, f"{type(error).__name__}: {error}")
            finally:
                self._queue.task_done()

    def one(self, attempt: Attempt) -> Answer | None:
        """Make it, and judge what came of it."""
        try:
            answer = make(attempt, self.served.address, self._hang)
        except Hangs as error:
            self._count(attempt, "hangs", self._hang)
            self.fail(attempt, str(error))
            return None
        self._count(attempt, str(answer.status) if answer.status else answer.problem.partition(":")[0], answer.seconds)
        if problem := judged(attempt, answer) or self._otherwise(attempt, answer):
            self.fail(attempt, problem)
        if answer.status == 200 and attempt.method == "PATCH":
            self.served.reset_control()
        return answer

    def _otherwise(self, attempt: Attempt, answer: Answer) -> str:
        """What the document states otherwise. Of the step stream only the beginning was read."""
        if attempt.operation is None or not answer.status or (answer.status == 200 and ENDLESS in attempt.operation):
            return ""
        if answer.status == 405:  # schemathesis also asks by methods that the path does not have
            return ""
        return self._stated.problem(*attempt.operation, answer.status, answer.media, answer.body)

    def _count(self, attempt: Attempt, outcome: str, seconds: float) -> None:
        with self._lock:
            self.statuses[outcome] += 1
            self.labels[attempt.label] += 1
            self.slowest = max(self.slowest, (seconds, attempt.label))

    def fail(self, attempt: Attempt, problem: str) -> None:
        with self._lock:
            self._save.mkdir(parents=True, exist_ok=True)
            file = self._save / f"http-{self._seed}-{len(self.failures)}.json"
            attempt.save(file)
            self.failures.append(problem)
        print(f"FAILED {attempt.label}: {problem}\n  again: --replay {file}", flush=True)


def judged(attempt: Attempt, answer: Answer) -> str:
    """What is wrong with an answer; empty where nothing is."""
    status, body = answer.status, answer.body
    if status == 0:
        return f"no answer to a whole request: {answer.problem}" if attempt.whole and attempt.end == "read" else ""
    timed = status == 504 and any(b'"timeout"' in piece for piece in attempt.pieces)  # its own time was over
    if status >= 500 and status not in attempt.allowed and not timed:
        return f"status {status}: {body[:500]!r}"
    if attempt.method == "HEAD":
        return ""
    if status >= 400:
        return _error(status, answer)
    if answer.media == "application/json" and not _is_json(body):
        return f"status {status} with a body that is no JSON: {body[:200]!r}"
    if answer.media == "text/event-stream" and body and not body.endswith(b"data: [DONE]\n\n"):
        return f"a stream that ends without [DONE]: {body[-300:]!r}"
    if answer.media == "text/event-stream" and b'"error"' in body and b'data: {"error":' in body:
        return f"a stream that ends with an error: {body[-500:]!r}"
    return ""


def _error(status: int, answer: Answer) -> str:
    """Every error is ours, and says what."""
    try:
        error = json.loads(answer.body)["error"]
        told = error["message"]
        whole = error.keys() >= _ERROR_FIELDS and isinstance(told, str) and bool(told.strip())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        whole = False
    return "" if whole else f"status {status} without an error in JSON: {answer.media} {answer.body[:300]!r}"


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def fuzz(served: Served, count: int, seed: int, clients: int, hang: float, save: Path) -> Run:
    """Make `count` attempts, and look at the server in between and afterwards."""
    run = Run(served, save, seed, hang)
    threads = run.start(clients)
    waiting = min(0.2, 40 / count)  # so that about as many wait for a timeout, however many there are
    made = map(RequestMaker(seed, waiting=waiting).make, itertools.count())
    document = served.get("/openapi.json")
    warm_up, by_schema = min(WARM_UP, count // 3), int(count * BY_SCHEMA)
    for attempt in itertools.islice(made, warm_up):
        run.put(attempt)
    run.idle()
    before = served.at_rest()
    by_schemas = drawn(document, by_schema, seed)
    others = made_each(made, (count - warm_up - by_schema) / by_schema if by_schema else 0.0)
    both = itertools.chain.from_iterable((attempt, *next(others)) for attempt in by_schemas)
    with contextlib.closing(by_schemas), contextlib.suppress(Enough):
        for attempt in itertools.islice(itertools.chain(both, made), count - warm_up):
            run.put(attempt)
    run.finish(threads)
    run.failures += served.problems()
    run.failures += served.settled(before)
    run.failures += grown(before, served.usage())
    return run


def made_each(made: Iterator[Attempt], share: float) -> Iterator[tuple[Attempt, ...]]:
    """As many at a time as come upon one of the others."""
    owed = 0.0
    while True:
        owed += share
        yield tuple(itertools.islice(made, int(owed)))
        owed -= int(owed)


def grown(before: Usage, after: Usage) -> list[str]:
    most = max(before.memory * MEMORY_GROWTH, before.memory + MEMORY_NOISE)
    if after.memory <= most:
        return []
    return [f"memory grew from {before.memory >> 20} to {after.memory >> 20} MiB"]


def summary(run: Run, seconds: float) -> str:
    """Counts by status, and by what was tried."""
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(run.statuses.items()))
    kinds: Counter[str] = Counter()
    for label, count in run.labels.items():
        kinds["by the schemas" if label.split()[0].isupper() else label] += count
    told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    slowest, label = run.slowest
    usage = run.served.usage() if run.served.process.poll() is None else None
    used = f"; {usage.memory >> 20} MiB, {usage.files} open files in {usage.processes} processes" if usage else ""
    return (
        f"{run.done:,} requests in {seconds:.0f} s, the slowest {slowest:.2f} s ({label}){used}\n"
        f"tried: {told}\ncame: {statuses}\n{len(run.failures)} failures"
    )


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.api", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="of requests (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=8, help="at once (default: %(default)s)")
    parser.add_argument(
        "--hang", type=float, default=HANG_SECONDS, help="seconds an answer may take (default: %(default)s)"
    )
    parser.add_argument("--save", type=Path, default=Path("build/fuzz"), help="folder for requests that fail")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="make one of those again")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        served = Served(Path(folder))
        try:
            if arguments.replay is not None:
                run = Run(served, Path(folder), arguments.seed, arguments.hang)
                print(run.one(Attempt.load(arguments.replay)))
            else:
                run = fuzz(served, arguments.count, arguments.seed, arguments.clients, arguments.hang, arguments.save)
            print(summary(run, time.monotonic() - began), flush=True)
        finally:
            ending = served.stop()
        failures = run.failures + ending
    for problem in failures:
        print(f"FAILED {problem}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
