"""JSON bodies to structs: every complaint names the field, what is allowed, and what came instead."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from engine.server.errors import ApiError

Body = TypeVar("Body")
MAX_SHOWN = 40  # characters of a value that is told back
# A body that is large for its texts takes milliseconds to decode; one of millions of small values takes seconds, and
# they a gigabyte. Commas inside texts are counted too, but so many come with as many tokens.
MAX_COMMAS = 1 << 18
LARGE = 1 << 20  # bytes; no more of a bad body is looked at for what to tell of it


def parse(data: bytes, kind: type[Body]) -> Body:
    """A body from JSON.

    Raises:
        ApiError: 400 that names the field (as `messages[0].role`), or says that it is not JSON or has too many values.
    """
    if len(data) > MAX_COMMAS and (commas := data.count(b",")) > MAX_COMMAS:
        raise ApiError(f"the body has too much in it: {commas:,} commas, and at most {MAX_COMMAS:,} are taken")
    collects = gc.isenabled()
    gc.disable()  # what is decoded has no cycles, and looking for some costs more than decoding
    try:
        return _decode(data, kind)
    finally:
        if collects:
            gc.enable()


def _decode(data: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        message, param = explain(str(error), data, kind)
        raise ApiError(message, param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if half := _HALF_PAIR.search(data, 0, LARGE):
            escape = half["escape"].decode()
            what = f"the body is not text: {escape} (byte {half.start('escape')}) is half of a surrogate pair"
        else:
            what = f"the body is not valid JSON: {error}"
        raise ApiError(what) from error
    except RecursionError as error:
        raise ApiError("the body is nested too deeply") from error


# An escaped high surrogate that no low one follows; msgspec takes it for the end of the input.
_HALF_PAIR = re.compile(rb"(?<!\\)(?:\\\\)*(?P<escape>\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F])")
_PLACE = re.compile(r"(?P<what>.*) - at `(?P<key>key` in `)?\$\.?(?P<path>[^`]*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.+)`", re.DOTALL)
_STEP = re.compile(r"(?P<field>[^.\[\]]+)|\[(?P<index>\d+)\]")


def explain(message: str, data: bytes, kind: type[Any]) -> tuple[str, str | None]:
    """msgspec's complaint about `data` as (`field: what`, field), with what is allowed."""
    path, each = "", ""
    if match := _PLACE.fullmatch(message):
        message, path = match["what"], match["path"]
        each = "every key " if match["key"] else "every value " if path.endswith("[...]") else ""
        path = path.removesuffix("[...]")
    if match := _MISSING.fullmatch(message):
        path, what = f"{path}.{match['field']}".removeprefix("."), "required, but missing"
    elif match := _UNKNOWN.fullmatch(message):
        allowed = ", ".join(kind.__struct_fields__)
        path, what = f"{path}.{match['field']}".removeprefix("."), f"unknown field; allowed: {allowed}"
    else:
        types = _types_at(kind, path)
        if each:
            parts = [at for at in types if isinstance(at, inspect.DictType)]
            types = list(_alternatives(at.key_type if each == "every key " else at.value_type for at in parts))
        got = msgspec.UNSET if each else _value_at(data, path)
        what = f"{each}must be {_allowed(types, got)}"
        if got is not msgspec.UNSET:
            what += f", got {_shown(got)}"
    return (f"{path}: {what}", path) if path else (f"the body: {what}", None)


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


def _value_at(data: bytes, path: str) -> Any:
    """What a body has there; UNSET if it cannot be read in whole, or is large."""
    if len(data) > LARGE:
        return msgspec.UNSET
    try:
        value = msgspec.json.decode(data)
        for step in _STEP.finditer(path):
            value = value[step["field"] or int(step["index"])]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return msgspec.UNSET
    return value


def _allowed(types: Iterable[inspect.Type], got: Any) -> str:
    """The alternatives in words. Null is not told: it is the same as leaving a field out."""
    words: list[str] = []
    for at in types:
        match at:
            case inspect.BoolType():
                words += ["true", "false"]
            case inspect.LiteralType(values=values):
                words += map(json.dumps, values)
            case inspect.IntType():
                least = at.ge if at.ge is not None else None if at.gt is None else at.gt + 1
                most = at.le if at.le is not None else None if at.lt is None else at.lt - 1
                is_number = isinstance(got, int) and not isinstance(got, bool)
                bounds = "" if least is None or most is None else f"from {least} to {most}"
                words.append(_bounded("an integer", bounds, is_number))
            case inspect.FloatType():
                is_number = isinstance(got, int | float) and not isinstance(got, bool)
                least_words = f"from {at.ge:g} to" if at.ge is not None else f"more than {at.gt or 0:g} and at most"
                words.append(_bounded("a number", "" if at.le is None else f"{least_words} {at.le:g}", is_number))
            case inspect.StrType(min_length=shortest, max_length=longest):
                words.append("a string" if longest is None else f"a string of {shortest or 0} to {longest} characters")
            case inspect.ListType(min_length=shortest, max_length=most):
                at_most = _at_most(most, got, list)
                words.append("an array that is not empty" if shortest and not at_most else f"an array{at_most}")
            case inspect.DictType(max_length=most):
                words.append(f"an object{_at_most(most, got, dict)}")
            case inspect.StructType():
                words.append("an object")
    return _either(words)


def _at_most(most: int | None, got: Any, kind: type[Any]) -> str:
    """The bound of an array or an object, where that may be what is wrong with it."""
    may_be = got is msgspec.UNSET or (isinstance(got, kind) and got)
    return f" of at most {most}" if most is not None and may_be else ""


def _bounded(noun: str, bounds: str, is_number: bool) -> str:
    """Of what is a number already the bounds alone are told."""
    return bounds if bounds and is_number else f"{noun} {bounds}".rstrip()


def _either(words: Sequence[str]) -> str:
    """Where nothing is said of a value, as of a template's variables, msgspec refuses a number that is too large."""
    *firsts, last = words or ("JSON whose numbers fit into 64 bits",)
    return f"{', '.join(firsts)} or {last}" if firsts else last


def _shown(value: Any) -> str:
    match value:
        case list() | dict():
            noun = "array" if isinstance(value, list) else "object"
            return f"an {noun} of {len(value)}" if value else f"an empty {noun}"
        case str() if len(value) > MAX_SHOWN:
            return f"{len(value)} characters"
        case int() if abs(value) >= 10**MAX_SHOWN:
            return f"one of more than {MAX_SHOWN} digits"
    return json.dumps(value, ensure_ascii=False)
