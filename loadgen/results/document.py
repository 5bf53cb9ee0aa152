"""From a run's file to its figures: a pass over its requests in bounded memory, and the document that programs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from loadgen.metrics.slo import Slo, parse_slo
from loadgen.metrics.summary import Figures
from loadgen.metrics.window import WHOLE_RUN, Span, find_window, parse_span
from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.notes import notes, warnings
from loadgen.results.run_file import BY_HAND, ENGINE_ENDED, KILLED, ResultError, RunEnd, RunFile
from loadgen.results.series import Series

Document = dict[str, Any]

NOTHING_SEEN = RunEnd(at=0.0)
NO_SPAN = Span()


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
    series: Series
    first_failures: Mapping[Outcome, RequestRecord]

    @property
    def end(self) -> RunEnd:
        """What was seen around the requests; nothing was if the run was killed."""
        return self.run.end or NOTHING_SEEN

    def document(self) -> Document:
        """The JSON contract's shape."""
        end, header = self.end, self.run.header
        summary = {**self.figures.summary(), **end.client}
        return {
            "label": header.label,
            "summary": summary,
            "engine": end.engine,
            "settings": _settings(self.run, self.figures),
            "server": {**header.server, "metrics": end.server},
            "client": {"versions": header.versions, "machine": header.machine},
            "warnings": warnings(self.run, summary),
            "notes": notes(self.run, summary, self.first_failures.values()),
        }


def measure(run: RunFile, asked: Asked = AS_THE_RUN) -> Measured:
    """Read a run's requests and make its figures. Raises `ResultError`, and `ValueError` for limits or spans asked."""
    slo, warmup, cooldown = _how(run, asked)
    whole = warmup == cooldown == NO_SPAN
    window = WHOLE_RUN if whole else find_window(run.records(), warmup, cooldown)
    figures = Figures(slo, window)
    series = Series(_seconds(run))
    first_failures: dict[Outcome, RequestRecord] = {}
    for record in run.records():
        figures.add(record)
        series.add(record)
        if record.outcome.failed and record.detail:
            first_failures.setdefault(record.outcome, record)
    return Measured(run, figures, series, first_failures)


def document(runs: RunFile | Sequence[RunFile], asked: Asked = AS_THE_RUN) -> Document:
    """The figures of a run, or of repeats as one, under the names that scripts rely on. Raises as `measure`."""
    files = [runs] if isinstance(runs, RunFile) else runs
    return merged([measure(run, asked) for run in files])


def merged(runs: Sequence[Measured]) -> Document:
    """Repeats as one: their histograms merge, their times add up, and each one's own document is in `runs`.

    One run is its own document. Raises ValueError without any, and if their limits differ.
    """
    if not runs:
        raise ValueError("there is nothing to merge")
    if len(runs) == 1:
        return runs[0].document()
    figures = Figures(runs[0].figures.slo)
    for one in runs:
        figures.merge(one.figures)
    documents = [one.document() for one in runs]
    first = documents[0]
    return {
        "label": f"{first['label']}, {len(runs)} runs merged",
        "summary": figures.summary(),
        "engine": None,
        "settings": first["settings"],
        "server": {**first["server"], "metrics": None},
        "client": first["client"],
        "warnings": [f"{name}: {text}" for name, one in _named(runs, documents) for text in one["warnings"]],
        "notes": [
            *_other_settings(documents),
            *(f"{name}: {text}" for name, one in _named(runs, documents) for text in one["notes"]),
        ],
        "runs": documents,
    }


def _named(runs: Sequence[Measured], documents: Sequence[Document]) -> list[tuple[str, Document]]:
    return [(one.run.path.name, document) for one, document in zip(runs, documents, strict=True)]


def _other_settings(documents: Sequence[Document]) -> list[str]:
    """Runs that were asked for other things are no repeats; which seed it was, and when, makes no difference."""
    allowed = {"seed", "started_at", "interrupted", "speed_changes", "url"}
    first = documents[0]["settings"]
    differing = sorted(
        name for name in first.keys() - allowed if any(one["settings"].get(name) != first[name] for one in documents)
    )
    return (
        [f"The merged runs are no repeats of each other: they differ in {', '.join(differing)}."] if differing else []
    )


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
    rate = settings.arrivals.removeprefix("poisson:")
    out: dict[str, Any] = msgspec.to_builtins(settings)
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
        "rate": float(rate) if rate != settings.arrivals else None,
        "mode": settings.control.get("batching"),
        "alloc": settings.control.get("allocation"),
        "timeout_s": settings.timeout,
        "temperature": header.trace.get("temperature"),
        "slo": None if figures.slo is None else str(figures.slo),
        "started_at": header.started_at,
        "stopped_by": KILLED if end is None else end.stopped_by,
        "interrupted": end is None or end.stopped_by in (BY_HAND, ENGINE_ENDED),
    }
