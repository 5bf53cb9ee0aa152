"""The two sides of a comparison, from texts like `mode=static,alloc=reserved`: what each is asked for.

A side is the command's own options with some of them changed, and with changes of the engine's control.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from engine.protocol import Control
from loadgen.arrivals import parse_arrivals
from loadgen.experiments.pools import Pools, parse_pools, shapes, sized
from loadgen.options import engine_arguments, positive_float, positive_int, server_url
from loadgen.settings import Settings
from loadgen.stop_rules import stop_rules_of

DEFAULTS = ("mode=static,alloc=reserved", "mode=continuous,alloc=paged")  # as systems were before paging, and after
FLAGS = ("--a", "--b")
AS_ASKED = "as asked"
_SHORT = {"mode": "batching", "alloc": "allocation"}
_CONTROL = get_type_hints(Control)


class SideError(argparse.ArgumentTypeError):
    """A side that cannot be understood; the message names the flag and the field, and says what is allowed."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side: its name for a reader, and the settings of its runs."""

    name: str
    settings: Settings
    pools: Pools | None = None  # as it was asked for; None: its server need be no cluster


def _arrivals(text: str) -> str:
    parse_arrivals(text, 0)
    return text


_FIELDS: dict[str, Callable[[str], Any]] = {
    "url": server_url,
    "model": str,
    "engine-args": engine_arguments,
    "speed": positive_float,
    "concurrency": positive_int,
    "arrivals": _arrivals,
    "rate": lambda text: _arrivals(f"poisson:{positive_float(text):g}"),
    "users": lambda text: _arrivals(f"users:{positive_int(text)}"),
    "pools": parse_pools,
}
_WHEN = ("arrivals", "rate", "users")
ALLOWED = ", ".join(["name", *_FIELDS, *_SHORT, *(field for field in _CONTROL if field not in _SHORT.values())])


def parse_sides(a: str | None, b: str | None, base: Settings) -> tuple[Side, Side]:
    """Both sides over what the command was asked for. Without either these are `DEFAULTS`; one alone is held against
    the options as they are. Raises `SideError`.
    """
    texts = DEFAULTS if a is None and b is None else (a or "", b or "")
    first, second = _started(*(_side(flag, text, base) for flag, text in zip(FLAGS, texts, strict=True)))
    _check_shared_server(first, second)
    if first.name == second.name:
        return replace(first, name=f"{first.name} (A)"), replace(second, name=f"{second.name} (B)")
    return first, second


def one_server(first: Side, second: Side) -> bool:
    """Whether both sides are one server: one that is there, or a cluster that is started once and switched between
    them, since its workers are the same."""
    a, b = first.settings, second.settings
    if a.url is not None or b.url is not None:
        return a.url == b.url
    return first.pools is not None and second.pools is not None and a.engine_args == b.engine_args


def _started(first: Side, second: Side) -> tuple[Side, Side]:
    """The sides whose cluster is to be started with the workers that they have. Raises `SideError`."""
    own = [side.pools if side.settings.url is None else None for side in (first, second)]
    try:
        started = shapes(*own)
    except ValueError as error:
        raise SideError(f"pools: {error}") from None
    told = []
    for flag, side, shape in zip(FLAGS, (first, second), started, strict=True):
        if shape is not None and sized(side.settings.engine_args):
            if any(pools is not None and pools.shape is not None for pools in own):
                raise SideError(f"{flag}: pools: the engine's arguments say how many workers there are, too")
        elif shape is not None:
            arguments = (*side.settings.engine_args, *shape.arguments())
            side = replace(side, settings=msgspec.structs.replace(side.settings, engine_args=arguments))
        told.append(side)
    return told[0], told[1]


def _check_shared_server(first: Side, second: Side) -> None:
    """What one side sets on a server stays so; the other must say what it is to be."""
    if not one_server(first, second):
        return
    for flag, here, there in ((FLAGS[1], first, second), (FLAGS[0], second, first)):
        missing = here.settings.control.keys() - there.settings.control.keys()
        if here.pools is not None and there.pools is None:
            missing.add("pools")
        if missing:
            name = min(missing)
            raise SideError(f"{flag}: {name} is missing: both sides are one server, on which the other side sets it")


def _side(flag: str, text: str, base: Settings) -> Side:
    words = _words(flag, text)
    name = words.pop("name", None)
    changes: dict[str, Any] = {}
    control: dict[str, str | int | float | bool] = {}
    for word, value in words.items():
        field = _SHORT.get(word, word).replace("-", "_")
        try:
            if word in _FIELDS:
                changes[word] = _FIELDS[word](value)
            elif field in _CONTROL:
                if field in control:
                    raise ValueError("is given twice")
                control[field] = _control(field, value)
            else:
                raise SideError(f"{flag}: there is no {word!r}; allowed are {ALLOWED}")
        except SideError:
            raise
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise SideError(f"{flag}: {word}: {error}") from None
    if len(given := [word for word in _WHEN if word in changes]) > 1:
        raise SideError(f"{flag}: {given[1]}: not allowed beside {given[0]}; both say when sessions arrive")
    settings = _settings(flag, base, changes, control)
    pools: Pools | None = changes.get("pools")
    if pools is not None and pools.shape is not None and settings.url is not None:
        raise SideError(
            f"{flag}: pools: {pools.shape}: only for a cluster that loadgen starts, and this side is at "
            f"{settings.url}; `paged-engine scale` sizes one that runs"
        )
    return Side(name or _name(text, words, control), settings, pools)


def _words(flag: str, text: str) -> dict[str, str]:
    """Parts between commas, each NAME=VALUE; quotes keep commas and spaces together."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = ",", True, ""
    words: dict[str, str] = {}
    try:
        parts = list(lexer)
    except ValueError as error:
        raise SideError(f"{flag}: {str(error).lower()}: {text!r}") from None
    for part in parts:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise SideError(f"{flag}: expected NAME=VALUE between commas, like {DEFAULTS[0]}, got {part!r}")
        if name in words:
            raise SideError(f"{flag}: {name}: is given twice")
        words[name] = value
    return words


def _control(field: str, text: str) -> str | int | float | bool:
    """A value of the engine's control. Raises ValueError that says what is allowed."""
    kind = _CONTROL[field]
    try:
        value: str | int | float | bool = msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        if get_origin(kind) is Literal:
            allowed = f"one of {', '.join(get_args(kind))}"
        else:
            allowed = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"expected {allowed}, got {text!r}") from None
    return value


def _name(text: str, words: Mapping[str, str], control: Mapping[str, object]) -> str:
    if words.keys() == {"pools"}:
        return words["pools"]
    if words and control.keys() <= {"batching", "allocation"} and len(control) == len(words):
        return "+".join(str(value) for value in control.values())
    return text or AS_ASKED


def _settings(
    flag: str, base: Settings, changes: dict[str, Any], control: dict[str, str | int | float | bool]
) -> Settings:
    """The base with a side's changes."""
    url = changes.get("url", base.url)
    if url is not None and "engine-args" in changes:
        raise SideError(f"{flag}: engine-args: only for an engine that loadgen starts, and this side is at {url}")
    engine_args = base.engine_args if url is None else ()
    if url is None and "model" in changes:
        engine_args = (*engine_args, "--model", changes["model"])  # the last one counts
    settings = msgspec.structs.replace(
        base,
        url=url,
        metrics_url=base.metrics_url if url == base.url else None,  # of that server alone
        model=None if url is None else changes.get("model", base.model),
        engine_args=(*engine_args, *changes.get("engine-args", ())),
        speed=changes.get("speed", base.speed),
        concurrency=changes.get("concurrency", base.concurrency),
        arrivals=next((changes[word] for word in _WHEN if word in changes), base.arrivals),
        pools=changes["pools"].mode if "pools" in changes else base.pools,
        control={**base.control, **control},
    )
    try:
        stop_rules_of(settings)
    except ValueError as error:
        raise SideError(f"{flag}: --until {error}") from None
    return settings
