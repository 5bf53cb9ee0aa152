"""How a server lets somebody in: a key, other headers, and whose certificates are believed.

What is secret of it is in no file that a run writes, in no report, and in no command line of loadgen's own.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

Headers = tuple[tuple[str, str], ...]

OWN = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "loadgen"}
DECIDED = (  # headers that make a request what it is, and who decides them
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "transfer-encoding",
    "x-request-id",
)


@dataclass(frozen=True, slots=True)
class Access:
    """`key` is sent as the bearer token, and goes before an `Authorization` among `headers`.

    `ca_file` has the certificates that are believed instead of the system's; `insecure`: any is.
    """

    key: str | None = field(default=None, repr=False)
    headers: Headers = field(default=(), repr=False)
    ca_file: str | None = None
    insecure: bool = False

    @property
    def sent(self) -> dict[str, str]:
        """The headers of each request."""
        sent = dict(self.headers)
        if self.key:
            sent = {name: value for name, value in sent.items() if name.lower() != "authorization"}
            sent["Authorization"] = f"Bearer {self.key}"
        return sent

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """For the HTTP client; True: as the system has it. Raises OSError for a file that has no certificates."""
        if self.insecure:
            return False
        return True if self.ca_file is None else ssl.create_default_context(cafile=self.ca_file)


ANYBODY = Access()
_SHORTEST = 6  # characters of a secret that is looked for in texts


def hidden(sent: Mapping[str, str], text: str) -> str:
    """A server's words without what was sent to be let in: some repeat a key that they refuse."""
    for value in _secrets(sent) if text else ():
        text = text.replace(value, "...")
    return text


def _secrets(sent: Mapping[str, str]) -> list[str]:
    """Of headers, the longest first: their values, without the scheme too, and a password."""
    found = set()
    for value in (value for name, value in sent.items() if OWN.get(name) != value):
        word = value.partition(" ")[2]
        found |= {value, word}
        with suppress(ValueError):
            found.add(base64.b64decode(word, validate=True).decode().partition(":")[2])
    return sorted((secret for secret in found if len(secret) >= _SHORTEST), key=len, reverse=True)


def basic(user: str, password: str) -> str:
    """The value of an `Authorization` header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def written(headers: Headers) -> str:
    """Headers as text, a line each, as `read_headers` reads them."""
    return "\n".join(f"{name}: {value}" for name, value in headers)


def read_headers(text: str) -> Headers:
    """Lines of `Name: value`; empty ones are left out. Raises ValueError that shows no value."""
    return tuple(read_header(line) for line in text.splitlines() if line.strip())


def read_header(line: str) -> tuple[str, str]:
    """One `Name: value`. Raises ValueError that shows no value."""
    name, colon, value = line.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not name:
        raise ValueError("expected 'Name: value'")
    if not all(letter.isalnum() or letter in "!#$%&'*+-.^_`|~" for letter in name) or not name.isascii():
        raise ValueError(f"expected 'Name: value', and a name of letters, digits and -, got the name {name!r}")
    if not value.isprintable() or not value.isascii():
        raise ValueError(f"{name}: expected a value of ASCII letters without control characters")
    if name.lower() in DECIDED:
        raise ValueError(f"{name}: not allowed; loadgen itself decides it")
    return name, value
