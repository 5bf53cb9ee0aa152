"""JSON bodies to structs: every complaint names the field, what was wrong and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from engine.server.errors import ApiError

Body = TypeVar("Body")


def parse(data: bytes, kind: type[Body]) -> Body:
    """A body from JSON.

    Raises:
        ApiError: 400 that names the field (as `messages[0].role`), or says that it is not JSON.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        message, param = explain(str(error), kind)
        raise ApiError(message, param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise ApiError("the body is nested too deeply") from error


_PLACE = re.compile(r"(?P<what>.*) - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_CHOICE = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]+)`")
_BOUND = re.compile(r"Expected `(int|float|str)` (of length )?[<>]=? .*|Integer value out of range")
_STEP = re.compile(r"(?P<field>[^.\[\]]+)|\[\d+\]")


def explain(message: str, kind: type[Any]) -> tuple[str, str | None]:
    """msgspec's complaint as (`field: what`, field), with what is allowed."""
    path = ""
    if match := _PLACE.fullmatch(message):
        message, path = match["what"], match["path"].removesuffix("[...]")
    if match := _MISSING.fullmatch(message):
        path, message = f"{path}.{match['field']}".removeprefix("."), "required, but missing"
    elif match := _UNKNOWN.fullmatch(message):
        allowed = ", ".join(kind.__struct_fields__)
        path, message = f"{path}.{match['field']}".removeprefix("."), f"unknown field; allowed: {allowed}"
    elif match := _CHOICE.fullmatch(message):
        message = f"must be one of {', '.join(_choices(_types_at(kind, path)))}, got {match['value']}"
    elif _BOUND.fullmatch(message) and (bounds := _range(_types_at(kind, path))) is not None:
        message = f"{message}; allowed: {bounds}"
    message = message[:1].lower() + message[1:].replace("`", "")
    return (f"{path}: {message}", path) if path else (f"the body: {message}", None)


def _types_at(kind: type[Any], path: str) -> list[inspect.Type]:
    """What a struct takes at a path such as `messages[0].role`."""
    types = [inspect.type_info(kind)]
    for step in _STEP.finditer(path):
        inner: list[inspect.Type] = []
        for at in _alternatives(types):
            if isinstance(at, inspect.StructType) and step["field"]:
                inner += [field.type for field in at.fields if field.encode_name == step["field"]]
            elif isinstance(at, inspect.ListType) and not step["field"]:
                inner.append(at.item_type)
        types = inner
    return list(_alternatives(types))


def _alternatives(types: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for at in types:
        if isinstance(at, inspect.Metadata):
            yield from _alternatives([at.type])
        elif isinstance(at, inspect.UnionType):
            yield from _alternatives(at.types)
        else:
            yield at


def _choices(types: Iterable[inspect.Type]) -> Iterator[str]:
    for at in types:
        if isinstance(at, inspect.BoolType):
            yield from ("true", "false")
        elif isinstance(at, inspect.LiteralType):
            yield from map(str, at.values)


def _range(types: Iterable[inspect.Type]) -> str | None:
    """The bounds of the number or text that is taken, in words; None if there are not two."""
    for at in types:
        match at:
            case inspect.IntType(gt=gt, ge=ge, lt=lt, le=le):
                least = ge if ge is not None else None if gt is None else gt + 1
                most = le if le is not None else None if lt is None else lt - 1
                return None if least is None or most is None else f"{least} to {most}"
            case inspect.FloatType(gt=gt, ge=ge, le=le) if le is not None:
                return f"{ge:g} to {le:g}" if ge is not None else f"more than {gt:g}, at most {le:g}"
            case inspect.StrType(min_length=least, max_length=most) if most is not None:
                return f"{least} to {most} characters"
    return None
