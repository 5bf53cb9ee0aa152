"""From a run's file to its figures: a pass over its requests in bounded memory, and the document that programs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadgen.agreement import Agreement, agreement
from loadgen.arrivals import Poisson, parse_arrivals
from loadgen.metrics.classes import SPLIT
from loadgen.metrics.slo import Slo, parse_slo
from loadgen.metrics.summary import MOST_KINDS, Figures
from loadgen.metrics.window import WHOLE_RUN, Span, find_window, parse_span
from loadgen.outcome import RequestRecord
from loadgen.request_ids import request_id
from loadgen.results.notes import notes, warnings
from loadgen.results.run_file import BY_HAND, ENGINE_ENDED, KILLED, ResultError, RunEnd, RunFile
from loadgen.results.series import Series
from loadgen.server_figures import HISTOGRAMS, PERCENTILES

Document = dict[str, Any]

NOTHING_SEEN = RunEnd(at=0.0)
NO_SPAN = Span()
PARTS = tuple(f"p{percent}" for percent in PERCENTILES)


@dataclass(frozen=True, slots=True)
class Asked:
    """Limits and spans as texts, where they are to be others than the run's own settings have; None: those."""

    slo: str | None = None
    warmup: str | None = None
    cooldown: str | None = None


AS_THE_RUN = Asked()


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run measured. `first_failures` are the first of each kind with words of its own."""

    run: RunFile
    figures: Figures
    whole: Figures  # with the warm-up and cool-down, as the server saw it
    series: Series
    first_failures: Mapping[str, RequestRecord]

    @property
    def end(self) -> RunEnd:
        """What was seen around the requests; nothing was if the run was killed."""
        return self.run.end or NOTHING_SEEN

    def document(self) -> Document:
        """The JSON contract's shape."""
        end, header = self.end, self.run.header
        summary = {**_summary(self.figures, [self]), **end.client}
        agree = self.agreement()
        return {
            "label": header.label,
            "parts": len(self.run.resumed) + 1,
            "summary": summary,
            "classes": _classes(self.figures),
            "engine": end.engine,
            "settings": _settings(self.run, self.figures),
            "server": {**header.server, "metrics": end.server},
            "latency_by_both": latency_by_both(self.whole, end.server),
            "client": {"versions": header.versions, "machine": header.machine},
            "agreement": msgspec.to_builtins(agree),
            "warnings": warnings(self.run, summary, agree, self.kind),
            "first_failures": {
                kind: {
                    "session": record.session,
                    "turn": record.turn,
                    "detail": record.detail,
                    "request_id": request_id(header.id, *record.key) if header.id and record.sent is not None else None,
                }
                for kind, record in sorted(self.first_failures.items())
            },
            "notes": notes(self.run, summary, self.first_failures.values()),
        }

    @property
    def never(self) -> tuple[int, int]:
        """Turns, and sessions, that a run which ended early has no lines for."""
        header, (sessions, _) = self.run.header, self.whole.sessions
        return max(0, header.turns - self.whole.sums.turns), max(0, header.sessions - sessions)

    def agreement(self) -> Agreement:
        """Whether the server counted the same tokens, part by part of a run that was resumed."""
        unseen = len(self.run.resumed) + 1 - len(self.run.ends)
        servers = [*(end.server for end in self.run.ends), *[None] * unseen]
        engines = [*(end.engine for end in self.run.ends), *[None] * unseen]
        return agreement(self.whole, servers, engines, self.kind, str(self.run.header.server.get("model", "")))

    @property
    def server(self) -> str:
        """Which one it was, as far as is known."""
        metrics = self.end.server or {}
        version = self.run.header.server.get("version") or metrics.get("version") or ""
        return f"{'' if self.kind == 'unknown' else self.kind} {version}".strip()

    @property
    def kind(self) -> str:
        """The server's."""
        return kind_of(self.run.header.server, self.end.server)


def kind_of(facts: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> str:
    """A server's kind: by its models, else by its metrics."""
    kind = str(facts.get("kind", "unknown"))
    return kind if kind != "unknown" else str((metrics or {}).get("names_of", kind))


def measure(run: RunFile, asked: Asked = AS_THE_RUN) -> Measured:
    """Read a run's requests and make its figures. Raises `ResultError`, and `ValueError` for limits or spans asked."""
    slo, warmup, cooldown = _how(run, asked)
    whole = warmup == cooldown == NO_SPAN
    window = WHOLE_RUN if whole else find_window(run.records(), warmup, cooldown)
    figures = Figures(slo, window, split_of(run))
    all_of_it = figures if whole else Figures()
    series = Series(_seconds(run))
    first_failures: dict[str, RequestRecord] = {}
    for record in run.records():
        figures.add(record)
        if all_of_it is not figures:
            all_of_it.add(record)
        series.add(record)
        if record.outcome.failed and record.detail and len(first_failures) < MOST_KINDS:
            first_failures.setdefault(record.kind, record)
    return Measured(run, figures, all_of_it, series, first_failures)


def document(runs: RunFile | Sequence[RunFile], asked: Asked = AS_THE_RUN) -> Document:
    """The figures of a run, or of repeats as one, under the names that scripts rely on. Raises as `measure`."""
    files = [runs] if isinstance(runs, RunFile) else runs
    return merged([measure(run, asked) for run in files])


def read_document(path: Path) -> Document:
    """That of a run's file, or one that was kept as JSON. Raises `ResultError`."""
    try:
        text = path.read_bytes() if path.is_file() and _is_kept(path) else None
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror or error}") from None
    if text is None:
        return document(RunFile.read(path))
    try:
        kept = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ResultError(f"{path}: not JSON: {error}") from None
    wrong = [name for name in ("summary", "settings") if not isinstance(kept.get(name), dict)]
    if wrong:
        raise ResultError(
            f"{path}: {wrong[0]}: missing; expected a run's file, or what --json of replay or report wrote"
        )
    return {"engine": None, "classes": None, "warnings": [], "notes": []} | kept


def _is_kept(path: Path) -> bool:
    """A run's file begins with its whole header in a line; a document is indented."""
    with path.open("rb") as file:
        return file.readline().strip() == b"{"


def merged(runs: Sequence[Measured]) -> Document:
    """Repeats as one: their histograms merge, their times add up, and each one's own document is in `runs`.

    One run is its own document. Raises ValueError without any, and if their limits differ.
    """
    if not runs:
        raise ValueError("there is nothing to merge")
    if len(runs) == 1:
        return runs[0].document()
    documents, figures = [one.document() for one in runs], merged_figures(runs)
    first, other = documents[0], differing_settings(documents)
    return {
        "label": f"{first['label']}, {len(runs)} runs merged",
        "summary": _summary(figures, runs),
        "classes": _classes(figures),
        "engine": None,
        "settings": first["settings"],
        "server": {**first["server"], "metrics": None},
        "latency_by_both": None,
        "client": first["client"],
        "agreement": None,
        "warnings": [f"{name}: {text}" for name, one in _named(runs, documents) for text in one["warnings"]],
        "notes": [
            *([f"The merged runs are no repeats of each other: they differ in {', '.join(other)}."] if other else []),
            *(f"{name}: {text}" for name, one in _named(runs, documents) for text in one["notes"]),
        ],
        "runs": documents,
    }


def merged_figures(runs: Sequence[Measured]) -> Figures:
    """Of several runs as one. Raises ValueError if their limits differ."""
    if len(runs) == 1:
        return runs[0].figures
    splits = {None if one.figures.classes is None else one.figures.classes.split for one in runs}
    figures = Figures(runs[0].figures.slo, split=splits.pop() if len(splits) == 1 else None)
    for one in runs:
        figures.merge(one.figures)
    return figures


def split_of(run: RunFile) -> int | None:
    """Up to how many tokens a prompt is short: as the run was told, else as its trace says that it was made."""
    told = run.header.settings.split_prompt_tokens
    recipe = run.header.trace.get("recipe")
    if told is None and isinstance(recipe, dict):
        told = recipe.get(SPLIT)
    return told if isinstance(told, int) and told > 0 else None


def _classes(figures: Figures) -> dict[str, Any] | None:
    """None: the run's prompts are in no classes."""
    return None if figures.classes is None else figures.classes.figures()


def _summary(figures: Figures, runs: Sequence[Measured]) -> dict[str, Any]:
    """Their figures, with the turns and sessions that were not reached and have no lines."""
    summary: dict[str, Any] = dict(figures.summary())
    turns, sessions = (sum(missing) for missing in zip(*(one.never for one in runs), strict=True))
    killed = any(one.run.end is None for one in runs)
    return summary | {
        "sessions_completed": None if killed else summary["sessions_completed"],  # its sessions may lack turns
        "not_reached": summary["not_reached"] + turns,
        "turns": summary["turns"] + turns,
        "sessions": summary["sessions"] + sessions,
    }


def _named(runs: Sequence[Measured], documents: Sequence[Document]) -> list[tuple[str, Document]]:
    return [(one.run.path.name, document) for one, document in zip(runs, documents, strict=True)]


def latency_by_both(whole: Figures, server: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Latencies of the whole run in milliseconds, as the client and as the server measured them; None without metrics.

    The server's percentiles are bounds: the value is at most that.
    """
    if server is None:
        return None
    client, both = whole.summary(), {}
    for name in HISTOGRAMS:
        told = server.get(f"count_{name}")
        if told is None and f"count_{name}" not in client:
            continue
        both[name] = {
            "client": {part: client.get(f"{part}_{name}_ms") for part in ("mean", *PARTS)}
            | {"count": client.get(f"count_{name}")},
            "server": {"mean": server.get(f"mean_{name}_ms")}
            | {f"{part}_at_most": server.get(f"{part}_{name}_at_most_ms") for part in PARTS}
            | {"count": told},
        }
    return both


def differing_settings(documents: Sequence[Document]) -> list[str]:
    """In which settings runs are unlike; where and when each was made, and from which seed, makes no difference."""
    allowed = {"seed", "started_at", "stopped_by", "interrupted", "speed_changes", "url"}
    names = documents[0]["settings"].keys() - allowed
    return sorted(name for name in names if len({repr(one["settings"].get(name)) for one in documents}) > 1)


def _how(run: RunFile, asked: Asked) -> tuple[Slo | None, Span, Span]:
    """The limits, warm-up and cool-down that figures are made by."""
    settings = run.header.settings
    own = Asked(settings.slo, settings.warmup, settings.cooldown)
    try:
        slo, warmup, cooldown = _parsed(own)
    except ValueError as error:
        raise ResultError(f"{run.path}: line 1: settings: {error}") from None
    other_slo, other_warmup, other_cooldown = _parsed(asked)
    return other_slo or slo, other_warmup or warmup or NO_SPAN, other_cooldown or cooldown or NO_SPAN


def _parsed(asked: Asked) -> tuple[Slo | None, Span | None, Span | None]:
    def span(text: str | None) -> Span | None:
        return None if text is None else parse_span(text)

    return None if asked.slo is None else parse_slo(asked.slo), span(asked.warmup), span(asked.cooldown)


def _seconds(run: RunFile) -> float:
    """How long a run went on: to the last moment that any request has, if it was killed."""
    if run.end is not None:
        return run.end.at
    moments = (moment for record in run.records() for moment in (record.ended, record.sent, record.scheduled))
    return max((moment for moment in moments if moment is not None), default=0.0)


def _settings(run: RunFile, figures: Figures) -> dict[str, Any]:
    """What was asked for, and what that came to."""
    header, end = run.header, run.end
    settings = header.settings
    own_engine = settings.url is None
    arrivals = parse_arrivals(settings.arrivals, settings.seed)
    out = msgspec.json.decode(msgspec.json.encode(settings), type=dict[str, Any])  # as it is read again
    del out["timeout"]
    return {
        **out,
        "url": header.server.get("url", settings.url),
        "engine_started_by_loadgen": own_engine,
        "engine_args": list(settings.engine_args) if own_engine else None,
        "model": header.server.get("model", settings.model),
        "sessions": header.sessions,
        "turns": header.turns,
        "speed_changes": [list(change) for change in end.speed_changes] if end else [],
        "rate": arrivals.rate if isinstance(arrivals, Poisson) else None,
        "mode": settings.control.get("batching"),
        "alloc": settings.control.get("allocation"),
        "timeout_s": settings.timeout,
        "temperature": header.trace.get("temperature"),
        "slo": None if figures.slo is None else str(figures.slo),
        "started_at": header.started_at,
        "stopped_by": KILLED if end is None else end.stopped_by,
        "interrupted": end is None or end.stopped_by in (BY_HAND, ENGINE_ENDED),
    }
