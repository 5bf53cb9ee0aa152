"""A run's file: JSON lines, first a header, then one line for each request, at the end what was seen around them.

It is written while the run goes on, so that a run that was killed is a file that ends early, and can be resumed:
then a `resumed` line follows, and what comes after it for the same request counts instead.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loadgen.settings import Settings

FORMAT = "loadgen-run"
VERSION = 1


class RunHeader(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="kind"):
    """What was asked for, of whom, with what, and when."""

    format: str = FORMAT
    version: int = VERSION
    label: str
    settings: Settings
    started_at: str  # ISO 8601, UTC
    sessions: int  # that were to be played
    turns: int
    trace: dict[str, Any]  # format, file, systems' names, recipe: what a reader must know of it
    server: dict[str, Any]  # url, model, max_model_len, version, whose engine it is
    versions: dict[str, str]  # of loadgen, Python and the HTTP client
    machine: dict[str, Any]  # processor, cores, memory, system: of the client


class Resumed(msgspec.Struct, frozen=True, kw_only=True, tag="resumed", tag_field="kind"):
    """The run went on at `at` seconds of its own time, in which the pause is left out."""

    at: float
    started_at: str
    versions: dict[str, str]


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, tag="end", tag_field="kind"):
    """What was seen around the requests. `engine` is from the engine's own stream, `server` from its /metrics."""

    at: float  # seconds of the run
    stopped_by: str | None = None  # None: it came to its end; else "Ctrl-C", a stop rule, or the engine's end
    client: dict[str, Any] = {}
    engine: dict[str, Any] | None = None
    moments: tuple[tuple[float, int, int, int], ...] = ()  # (second, held slots, internal waste, saved blocks)
    server: dict[str, Any] | None = None
    speed_changes: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()
