"""What is found out before the first request: what the server is, what the trace holds, whether they go together."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
import msgspec

from loadgen.cluster_calls import read_cluster, set_cluster
from loadgen.engine_watch import KeyRefused, read_snapshot, set_control
from loadgen.machine import machine, versions
from loadgen.played import NOTHING, Survey, header_of, survey_aside
from loadgen.probe import probe
from loadgen.request_ids import new_run
from loadgen.results.run_file import RunHeader
from loadgen.server import ServerError, ServerFacts, find_server
from loadgen.server_metrics import NoMetrics, find_metrics
from loadgen.settings import SEPARATED, Settings
from loadgen.target import Target
from loadgen.text.tokenizer import open_tokenizer
from loadgen.text.vocabulary import Vocabulary, find_vocabulary

NO_ENGINE = "No figures of the engine: "
INSECURE = "Warning: --insecure: any certificate is believed; whoever is in between can read and change all."
NO_KEY = "its own routes want an admin key, and none was given (--admin-key, --admin-key-file)"


@dataclass(slots=True)
class Prepared:
    """What is known before the first request."""

    facts: ServerFacts
    found: Survey
    vocabulary: Vocabulary | None
    header: RunHeader
    engine_refusal: str  # why its own routes may not be asked; empty where they may, as far as it has any

    @property
    def engine_open(self) -> bool:
        return not self.engine_refusal

    @property
    def engine_locked(self) -> bool:
        """Whether it would tell more with a key; other servers may refuse whatever they do not know."""
        return not self.engine_open and self.facts.kind == "paged-engine"

    @property
    def counts(self) -> bool:
        """Whether texts are counted by a tokenizer while it runs, since neither the trace nor the server tells."""
        uncounted = self.found.needs.replies or self.facts.usage is False
        return uncounted and (self.header.settings.tokenizer is not None or self.facts.tokenizes)

    def notes(self) -> list[str]:
        """What a reader of the figures must know of what was played."""
        notes = [*self.facts.notes(), *self.found.needs.notes(self.facts, self.vocabulary)]
        if self.engine_locked:
            notes.append(f"{NO_ENGINE}{self.engine_refusal}.")
        notes += [
            f"{count:,} of the trace's records were left out: {what}."
            for what, count in self.found.trace.left_out.items()
        ]
        if bad := self.found.trace.bad.count:
            notes.append(f"{bad:,} lines of the trace did not fit and were left out (--skip-bad).")
        if left_out := self.found.left_out:
            notes.append(f"{left_out:,} sessions were left out: longer than the server's context (--too-long skip).")
        return notes


async def prepare(
    settings: Settings,
    target: Target,
    http: aiohttp.ClientSession,
    engine_http: aiohttp.ClientSession,
    label: str,
    say: Callable[[str], None],
    over: Mapping[int, int] = NOTHING,
) -> Prepared:
    """Ask the server, read the trace through, try one request. Raises `ServerError`, `TraceError`, `EngineError`.

    `engine_http` asks the engine's own routes, with its key: one that is refused ends it here, and without one a run
    has no figures of the engine. `over` is the turns of a run that are over, by a session's index.
    """
    if settings.insecure:
        say(INSECURE)
    found = await survey_aside(settings, None, say, over)  # what is wrong with the file needs no server
    facts = await find_server(http, target.url, settings.model)
    if facts.max_model_len is not None and found.longest > facts.max_model_len:
        found = await survey_aside(settings, facts.max_model_len, say, over)
    header = header_of(found.trace, settings)
    if settings.pools is not None:
        await set_cluster(engine_http, target.url, {"separate": settings.pools == SEPARATED})
    if settings.control:
        await set_control(engine_http, target.url, settings.control)
    refusal = ""
    try:
        if await read_snapshot(engine_http, target.url) is None:
            await read_cluster(engine_http, target.url)
    except KeyRefused as error:
        if target.keys.admin is not None:
            raise
        refusal = error.told or NO_KEY
        if facts.kind == "paged-engine":
            say(f"{NO_ENGINE}{refusal}.")
    if settings.metrics_url is not None:
        try:
            await find_metrics(http, settings.metrics_url)
        except NoMetrics as error:
            raise ServerError(f"--metrics-url {error}") from None
    vocabulary = None
    if found.needs.tokenizer:
        tokenizer = open_tokenizer(settings.tokenizer, http, facts)
        vocabulary = await find_vocabulary(tokenizer) if found.needs.vocabulary else None
    if settings.probe:
        facts, vocabulary = await probe(http, facts, settings, found.needs, vocabulary)
    run_header = RunHeader(
        id=new_run(),
        label=label,
        settings=settings,
        started_at=now(),
        sessions=found.sessions,
        turns=found.turns,
        trace={
            "file": settings.file,
            "format": str(found.trace.format),
            "temperature": header.temperature,
            "recipe": header.recipe,
            "bad_lines": found.trace.bad.count,
            "left_out": found.left_out,
            "digest": found.digest,
        },
        server={
            **msgspec.to_builtins(facts),
            "started_by_loadgen": target.engine is not None,
        },
        versions=versions(),
        machine=machine(),
    )
    return Prepared(facts, found, vocabulary, run_header, refusal)


def now() -> str:
    """The date and time as a run's file has them."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
