"""Seeded damage: good inputs to bad ones, some as bytes and some as JSON that still is JSON."""

from __future__ import annotations

import gzip
import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -0.0, 1, -1, 2, 0.5, 255, 256, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    -(2**63) - 1, 10**18, 10**30, 1e-320, 1e16, 1e300, 1.7976931348623157e308, -1e308, 1e-7,
)  # fmt: skip
NUMBER_TEXTS = (
    *(json.dumps(number).encode() for number in NUMBERS),
    b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e999", b"1" * 5000, b"0." + b"0" * 400 + b"1", b"00", b"+1",
    b"0x10", b"1_000", b"\xd9\xa3", b"1e", b".5", b"-", b"99999999999999999999.5",
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "\n", "\r\n", "a" * 5000, "é", "\ufeff", "\u2028", "\U0001f600", "\u202e", "{}", "null", "NaN",
    "$\".`[0]", "../../etc/passwd", "%s%n", "{{ 7 * 7 }}", "<|im_end|>", "\x7f\x1b[2J", "-1", "user",
)  # fmt: skip
VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"a": 1}, *NUMBERS, *TEXTS)
DEEP = 3000  # levels: more than any reader's recursion takes
SNIPPETS = (
    *NUMBER_TEXTS,
    b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0", b"\xef\xbb\xbf", b"\\ud800",
    b"\\udc00\\ud800", b"\\u", b"\\", b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r", b"\r\n",
    b"\n\n", b" " * 200, b"\t", b"null", b"true", b"[" * DEEP, b'{"a":' * DEEP, b"]" * 50, b"/*", b"#", b"-", b"e",
    b'"a":1,', b'"":"",', b"\x1f\x8b",
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


class Mutator:
    """Bad inputs from good ones. `words` are put in too: what this kind of input has names for."""

    def __init__(self, seeds: Sequence[bytes], words: Sequence[bytes] = (), *, binary: bool = False) -> None:
        self._seeds = tuple(seeds)
        self._snippets = (*SNIPPETS, *words)
        damage = [flip, set_byte, cut, repeat, truncate, self._insert, self._insert, self._splice]
        if binary:
            damage += [set_integer] * 6
        else:
            damage += [replace_number, replace_number, replace_string, swap_lines, drop_line, repeat_line]
            damage += [self._repeat_field, mutate_json, mutate_json, mutate_json]
        self._damage: list[Callable[[bytes, random.Random], bytes]] = damage

    def make(self, chance: random.Random) -> bytes:
        """One input; as it was, now and then."""
        data = chance.choice(self._seeds)
        if chance.random() < 0.02:
            return bytes(chance.randrange(256) for _ in range(chance.randrange(40)))
        for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 2, 3, 6))):
            data = chance.choice(self._damage)(data, chance)
        return data

    def _insert(self, data: bytes, chance: random.Random) -> bytes:
        at = chance.randint(0, len(data))
        return data[:at] + chance.choice(self._snippets) + data[at:]

    def _splice(self, data: bytes, chance: random.Random) -> bytes:
        other = chance.choice(self._seeds)
        return data[: chance.randint(0, len(data))] + other[chance.randint(0, len(other)) :]

    def _repeat_field(self, data: bytes, chance: random.Random) -> bytes:
        """A key that is there twice."""
        opened = [at for at, byte in enumerate(data) if byte == ord("{")]
        names = _STRING.findall(data)
        if not opened or not names:
            return data
        at = chance.choice(opened) + 1
        value = json.dumps(chance.choice(VALUES)).encode()
        return data[:at] + chance.choice(names) + b":" + value + b"," + data[at:]


def zipped(data: bytes, chance: random.Random) -> bytes:
    """In gzip, which may itself be damaged."""
    packed = gzip.compress(data, 1, mtime=0)
    for _ in range(chance.choice((0, 1, 2))):
        packed = chance.choice((flip, truncate, cut, set_byte, repeat))(packed, chance)
    return packed


def flip(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return data
    at = chance.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << chance.randrange(8),)) + data[at + 1 :]


def set_byte(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return data
    at = chance.randrange(len(data))
    return data[:at] + bytes((chance.randrange(256),)) + data[at + 1 :]


def cut(data: bytes, chance: random.Random) -> bytes:
    begin, end = _part(data, chance)
    return data[:begin] + data[end:]


def repeat(data: bytes, chance: random.Random) -> bytes:
    begin, end = _part(data, chance)
    return data[:end] + data[begin:end] * chance.choice((1, 1, 2, 20)) + data[end:]


def truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randint(0, len(data))]


def set_integer(data: bytes, chance: random.Random) -> bytes:
    """A length, a count or a type that lies."""
    form = chance.choice("BHIIQQQ")
    bits = 8 * struct.calcsize(form)
    value = chance.choice((0, 1, 2, 7, 8, 9, 12, 13, 255, 65535, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1))
    at = chance.randint(0, len(data))
    return data[:at] + struct.pack("<" + form, value % 2**bits) + data[at + bits // 8 :]


def replace_number(data: bytes, chance: random.Random) -> bytes:
    return _replace(_NUMBER, data, chance.choice(NUMBER_TEXTS), chance)


def replace_string(data: bytes, chance: random.Random) -> bytes:
    return _replace(_STRING, data, json.dumps(chance.choice(VALUES)).encode(), chance)


def swap_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    first, second = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


def drop_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    del lines[chance.randrange(len(lines))]
    return b"\n".join(lines)


def repeat_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    lines.insert(chance.randint(0, len(lines)), chance.choice(lines))
    return b"\n".join(lines)


def mutate_json(data: bytes, chance: random.Random) -> bytes:
    """One line's JSON with one value in it of another type or size; a field more, or one less."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    try:
        tree = json.loads(lines[at])
    except (ValueError, RecursionError):
        return replace_number(data, chance)
    lines[at] = json.dumps(mutated(tree, chance), ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def mutated(tree: Any, chance: random.Random) -> Any:
    """A copy with one damage somewhere."""
    if not isinstance(tree, dict | list) or not tree or chance.random() < 0.1:
        return _other(tree, chance)
    if isinstance(tree, list):
        at = chance.randrange(len(tree))
        match chance.randrange(6):
            case 0:
                return tree[:at] + tree[at + 1 :]
            case 1:
                return tree[:at] + [tree[at]] * chance.choice((2, 3, 200)) + tree[at:]
            case _:
                return [*tree[:at], mutated(tree[at], chance), *tree[at + 1 :]]
    key = chance.choice(list(tree))
    match chance.randrange(8):
        case 0:
            return {name: value for name, value in tree.items() if name != key}
        case 1:
            return {**tree, chance.choice(TEXTS): chance.choice(VALUES)}
        case 2:
            return {**tree, key: chance.choice(VALUES)}
        case _:
            return {**tree, key: mutated(tree[key], chance)}


def _other(value: Any, chance: random.Random) -> Any:
    match chance.randrange(8):
        case 0:
            return [value]
        case 1:
            return {"a": value}
        case 2 if isinstance(value, str):
            at = chance.randint(0, len(value))
            return value[:at] + chance.choice(("\ud800", "\udfff", "\0", "\U0001f600")) + value[at:]
        case 3 if isinstance(value, int | float):
            return -value
        case 4 if isinstance(value, int | float):
            return value + chance.choice((1, -1, 0.5, 1000))
        case _:
            return chance.choice(VALUES)


def _part(data: bytes, chance: random.Random) -> tuple[int, int]:
    begin = chance.randint(0, len(data))
    return begin, min(len(data), begin + chance.choice((1, 2, 4, 8, 30, 200)))


def _replace(pattern: re.Pattern[bytes], data: bytes, by: bytes, chance: random.Random) -> bytes:
    found = list(pattern.finditer(data))
    if not found:
        return data + by
    match = chance.choice(found)
    return data[: match.start()] + by + data[match.end() :]
