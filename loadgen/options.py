"""Command-line options: their types, whose errors say what is allowed, and their environment variables.

Nothing heavy is imported here: `loadgen --help` reads it.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # argparse has no public name for it
else:
    Commands = Any

EXIT_FAILED_TURNS = 1
EXIT_BAD_INPUT = 2
EXIT_NO_SERVER = 3
EXIT_INTERRUPTED = 130
ENGINE_MODEL = "smollm2-135m"
FORMATS = ("paged-top-chat", "mooncake", "bailian", "burstgpt", "azure", "sharegpt", "vllm", "openai-batch", "aiperf")
UNITS = ("s", "ms", "us")
_COMMENT = re.compile(r"(^|\s)#.*")  # a key may have one too, but no space before it
_KEY_FILE = 1 << 20  # characters that are read of one
LEAST, MOST = 1e-9, 1e9  # of any number above 0: times divided by it stay finite


def _positive(kind: Callable[[str], float], text: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:  # no float is made of a whole number: it may be too large for one
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"expected {what} above 0, got {text!r}")
    if not LEAST <= value <= MOST:
        raise argparse.ArgumentTypeError(f"expected a number from {LEAST:g} to {MOST:g}, got {text!r}")
    return value


def positive_int(text: str) -> int:
    """A whole number above 0."""
    return int(_positive(int, text))


def positive_float(text: str) -> float:
    """A number above 0, within `LEAST` and `MOST`."""
    return _positive(float, text)


def whole_number(text: str) -> int:
    """A whole number from 0 on."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, got {text!r}")
    return value


class Address(str):
    """An address; `user`: the name and password that it was given with, which are not in its text."""

    user: tuple[str, str] | None = None


def _address(text: str, like: str, *, query: bool = False) -> Address:
    from urllib.parse import unquote, urlsplit

    shown = re.sub(r"//.*@", "//...@", text)
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and not ((parts.query and not query) or parts.fragment) and text.isprintable()
        usable = usable and " " not in text
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"expected an address like {like}, got {shown!r}")
    address = Address(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
    if parts.username is not None:
        address.user = unquote(parts.username), unquote(parts.password or "")
    return address


def server_address(text: str) -> Address:
    """An http(s) address without a path at its end; `/v1` is taken off. A user and password are kept apart."""
    address = _address(text, "http://127.0.0.1:8000")
    root = Address(address.rstrip("/").removesuffix("/v1"))
    root.user = address.user
    return root


def server_url(text: str) -> str:
    """The same without a user and password, which would be in the run's file."""
    address = server_address(text)
    if address.user is not None:
        raise argparse.ArgumentTypeError("expected an address without a user or password; --api-key is for keys")
    return str(address)


def metrics_url(text: str) -> str:
    """Where a server's metrics are: an address with a path, or a root below which they are looked for."""
    address = _address(text, "http://127.0.0.1:8002/metrics", query=True)
    if address.user is not None:
        raise argparse.ArgumentTypeError("expected an address without a user or password; it gets those of --url")
    return str(address)


def engine_arguments(text: str) -> tuple[str, ...]:
    """Arguments as a shell splits them."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"cannot be split as a shell would ({error}): {text!r}") from None


def unicode_text(text: str) -> str:
    """Text that can be sent; bytes of the command line that are no UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"expected UTF-8, got {text!r}") from None
    return text


def api_key(text: str) -> str:
    """A key that fits into a header."""
    if not unicode_text(text).isprintable():
        raise argparse.ArgumentTypeError("expected a key without line ends or other control characters")
    return text


def _lines(path: str) -> list[str]:
    """Of a small file."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read(_KEY_FILE).splitlines()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:  # of its text, or of its name
        raise argparse.ArgumentTypeError(f"cannot read {path!r}: it is not UTF-8 text") from None


def key_in_file(text: str) -> str:
    """The first key of a file as a paged-engine takes it: one a line, `#` begins a comment."""
    for number, line in enumerate(_lines(text), 1):
        if key := _COMMENT.sub("", line).strip():
            try:
                return api_key(key)
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentTypeError(f"{text}, line {number}: {error}") from None
    raise argparse.ArgumentTypeError(f"expected a key in {text}, got none")


def header(text: str) -> tuple[str, str]:
    """`Name: value`."""
    from loadgen.access import read_header

    try:
        return read_header(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def headers_in_file(text: str) -> tuple[tuple[str, str], ...]:
    """Lines of `Name: value` in a file."""
    from loadgen.access import read_headers

    try:
        return read_headers("\n".join(_lines(text)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def ca_file(text: str) -> str:
    """A file with certificates of authorities, by its whole path: client processes read it too."""
    import ssl

    path = os.path.abspath(os.path.expanduser(text))
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        told = "it has no certificates in PEM" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", error)
        raise argparse.ArgumentTypeError(f"cannot read {text!r}: {told}") from None
    return path


def key_options(add: OptionAdder) -> None:
    """How somebody who asks a server is let in. For `Keys.of`."""
    hide = "; others on this machine can read it in `ps`: the file or the variable hides it"
    add("--api-key", api_key, None, f"sent as the bearer token{hide}", metavar="KEY")
    add("--api-key-file", key_in_file, None, "a file whose first key is that; `#` begins a comment", metavar="FILE")
    engine = f"the same to a paged-engine's own routes, /engine; opens /v1 too{hide}"
    add("--admin-key", api_key, None, engine, metavar="KEY")
    add("--admin-key-file", key_in_file, None, "a file whose first key is that", metavar="FILE")
    more = f"one more header of every request; repeatable{hide.replace(' or the variable hides', ' hides')}"
    # It may be given again, so it is no environment variable.
    add.parser.add_argument("--header", type=header, action="append", default=[], metavar="'NAME: VALUE'", help=more)
    add("--header-file", headers_in_file, (), "a file with such headers, one a line", metavar="FILE")
    add("--ca-file", ca_file, None, "certificates (PEM) to believe instead of the system's", metavar="FILE")
    add("--insecure", yes_or_no, False, "believe any certificate: whoever is in between can read and change all")


def yes_or_no(text: str) -> bool:
    """A switch given as an environment variable."""
    values = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"expected 1 or 0, got {text!r}")
    return values[text.lower()]


class _Environment(str):
    """An option's text from an environment variable; argparse converts it only for the command that runs."""

    variable: str


def _converter(kind: Callable[[str], Any], choices: Sequence[str] | None) -> Callable[[str], Any]:
    """`kind`, with errors that name the variable a text came from, and choices checked for it too."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
            if choices and value not in choices:
                raise argparse.ArgumentTypeError(f"expected one of {', '.join(choices)}, got {text!r}")
        except argparse.ArgumentTypeError as error:
            if isinstance(text, _Environment):
                raise argparse.ArgumentTypeError(f"{text.variable}: {error}") from None
            raise
        return value

    return convert


class OptionAdder:
    """Adds options whose default may come from an environment variable of the same name."""

    def __init__(self, parser: argparse._ActionsContainer, prefix: str = "LOADGEN_") -> None:
        self.parser = parser
        self._prefix = prefix

    def __call__(
        self,
        flag: str,
        kind: Callable[[str], Any],
        default: Any,
        help: str,
        metavar: str | None = None,
        choices: Sequence[str] | None = None,
    ) -> None:
        variable = self._prefix + flag.removeprefix("--").replace("-", "_").upper()
        if variable in os.environ:
            default = _Environment(os.environ[variable])
            default.variable = variable
        convert = _converter(kind, choices)
        help = f"{help} [{variable}]"
        if kind is yes_or_no:
            self.parser.add_argument(flag, action="store_true", default=default, help=help).type = convert
            return
        metavar = metavar or (f"{{{','.join(choices)}}}" if choices else None)
        self.parser.add_argument(flag, type=convert, default=default, help=help, metavar=metavar)


def comma_separated(text: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
