"""Options of the command line, each also an environment variable and a line of the config file, in that order."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ENVIRONMENT = "PAGED_TOP_"
_COMMENT = re.compile(r"(^|\s)#.*")  # a key may have one too, but no space before it
_KEY_FILE = 1 << 20  # characters that are read of one
USAGE = 2
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


class Parser(argparse.ArgumentParser):
    """One line for an error, not the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message} (try {self.prog} --help)\n")


@dataclass(frozen=True, slots=True)
class Option:
    """`parse` reads its text and raises ArgumentTypeError; a switch has none. `play`: for recordings too.

    `many`: it may be said several times, `parse` gives a tuple, and that stands between two in a variable.
    """

    name: str
    help: str
    parse: Callable[[str], Any] | None = None
    metavar: str = ""
    default: Any = None
    play: bool = True
    live: bool = True
    many: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT + self.name.upper()


def secret(text: str) -> str:
    """A key as it goes into a header. Raises ArgumentTypeError, which does not tell it."""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError("must be printable ASCII without spaces; what came is not shown")
    return text


def secret_in(path: Path) -> str:
    """The first key of a file as the engine takes it: one a line, `#` begins a comment. Raises ArgumentTypeError."""
    try:
        with path.open(encoding="utf-8") as file:
            lines = file.read(_KEY_FILE).splitlines()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror or error}") from None
    except ValueError:  # of its text, or of its name
        raise argparse.ArgumentTypeError(f"{path}: is not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        if text := _COMMENT.sub("", line).strip():
            try:
                return secret(text)
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentTypeError(f"{path}: line {number} {error}") from None
    raise argparse.ArgumentTypeError(f"{path}: must hold a key, and has none")


def number(low: float, high: float) -> Callable[[str], float]:
    """A number from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be a number from {low:g} to {high:g}, got {text!r}")
        return value

    return parse


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number from `low` to `high`."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not low <= int(text[:20]) <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low:,} to {high:,}, got {text!r}")
        return int(text)

    return parse


def one_of(*choices: str) -> Callable[[str], str]:
    """One of some words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(choices)}, got {text!r}")
        return text

    return parse


def config_path(environment: Mapping[str, str]) -> Path:
    """Where the config file is looked for, if none is named."""
    base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "paged-top" / "config.toml"


def read_config(path: Path, options: tuple[Option, ...]) -> dict[str, Any]:
    """The values of a config file by option name. Raises ArgumentTypeError that names the file and the key."""
    import tomllib

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError alone
        raise argparse.ArgumentTypeError(f"{path}: is not TOML: {error}") from None
    known = {option.name: option for option in options if option.name != "config"}
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            raise argparse.ArgumentTypeError(
                f"{path}: {ascii(key)[1:-1]}: no such option; known are {', '.join(sorted(known))}"
            )
        try:
            out[name] = _parsed(known[name], value)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{path}: {key}: {error}") from None
    return out


def add_options(parser: Parser, options: tuple[Option, ...], file: Mapping[str, Any]) -> None:
    """Options with their defaults from the environment, then from the config file."""
    for option in options:
        default = file.get(option.name, option.default)
        text = os.environ.get(option.variable)
        if text:
            try:
                default = _parsed(option, text.split(option.many) if option.many else text)
            except argparse.ArgumentTypeError as error:
                parser.error(f"{option.variable}: {error}")
        words = f"{option.help} [{option.variable}]"
        if option.parse is None:
            parser.add_argument(option.flag, action=argparse.BooleanOptionalAction, default=default, help=words)
        else:
            action = _Collect if option.many else "store"
            parser.add_argument(
                option.flag,
                type=option.parse,
                action=action,
                default=default,
                metavar=option.metavar or None,
                help=words,
            )


class _Given(tuple[Any, ...]):
    """What the command line has said so far, and no default."""


class _Collect(argparse.Action):
    """Values of an option that may be said several times: they go before a variable's and the file's together."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, _Given((*(before if isinstance(before, _Given) else ()), *values)))


def without_options(arguments: Sequence[str], options: Sequence[Option]) -> list[str]:
    """A command line without some options that take a value."""
    flags = tuple(option.flag for option in options)
    out: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in flags:
            next(rest, None)
        elif not argument.startswith(tuple(f"{flag}=" for flag in flags)):
            out.append(argument)
    return out


def _parsed(option: Option, value: Any) -> Any:
    if option.many and option.parse is not None:
        values = value if isinstance(value, list) else [value]
        return tuple(found for one in values if (text := str(one).strip()) for found in option.parse(text))
    if option.parse is not None:
        return option.parse(str(value))
    word = str(value).lower()
    if word not in (*_YES, *_NO):
        raise argparse.ArgumentTypeError(f"must be 1 or 0, got {value!r}")
    return word in _YES
