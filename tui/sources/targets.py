"""Which servers are asked, and how: addresses, port ranges, fleet files, keys. No HTTP: it costs a start."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import unquote, urlsplit

MOST_TARGETS = 1_024
IN_RECORDINGS = "a recording of servers has their metrics alone"  # and no steps
_FLEET_FILE = 1 << 20  # characters
_PLACE = re.compile(r"([^@]*@)?(\[[^\[\]]+\]|[^\[\]:@]+)(:\d+)?")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?")
_RANGE = re.compile(r"(?P<before>(https?://)?[^/]+:)(?P<first>\d{1,5})-(?P<last>\d{1,5})(?P<path>/.*)?")
_BARE = re.compile(r"(\[[^\[\]]+\]|[^/:@\[\]]+):\d{1,5}(/.*)?")  # a place without http://
_COMMENT = re.compile(r"(^|\s)#.*")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a header's name
_NOT_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
_ENDPOINT = re.compile(r"(tcp://(\[[^\[\]]+\]|[^\[\]:/,\s*]+):(?P<port>\d{1,5})|ipc://[^,\s]+)")


@dataclass(frozen=True, slots=True)
class KvEndpoint:
    """Where a server publishes its KV events (PUB), and where past ones can be had again (ROUTER); None: nowhere."""

    events: str
    replay: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A server to be asked. `url` has neither a user nor a slash at its end; `user` is `name:password` as given there,
    which is sent, and is shown and recorded nowhere."""

    name: str
    url: str
    user: str = field(default="", repr=False)
    kv: tuple[KvEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How servers are asked. `admin_key` goes to what is taken for a paged-engine alone, and `insecure` leaves
    certificates unchecked.

    `ca_file`: the authorities that are believed, instead of the usual ones. Secrets are in no repr.
    """

    api_key: str | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_file: Path | None = None
    insecure: bool = False

    def unchecked(self, urls: Iterable[str]) -> bool:
        """Whether any of these is believed without a look at its certificate."""
        return self.insecure and any(url.startswith("https:") for url in urls)

    def headers_for(self, target: Target, ours: bool = False) -> dict[str, str]:
        """What is said with every request. `ours`: the admin key is meant for it.

        A header that is given by name goes before all, a key before a user in the address.
        """
        key = self.admin_key if ours and self.admin_key is not None else self.api_key
        told: dict[str, str] = {}
        if key is not None:
            told["Authorization"] = f"Bearer {key}"
        elif target.user:
            told["Authorization"] = f"Basic {b64encode(unquote(target.user).encode()).decode()}"
        for name, value in self.headers:
            told = {known: said for known, said in told.items() if known.lower() != name.lower()}
            told[name] = value
        return told


NO_SETTINGS = HttpSettings()


def server_urls(text: str) -> tuple[str, ...]:
    """Addresses between commas, each one `http://host:port`, perhaps with a user and a path, or a range of ports.

    `http://host:8000-8009` and `host:8000-8009` are ten. Raises ArgumentTypeError.
    """
    try:
        return tuple(url for part in text.split(",") for url in _ranged(part.strip()))
    except ArgumentTypeError:
        if "@" not in text:
            raise
        raise ArgumentTypeError("must be addresses such as http://127.0.0.1:8000; what came is not shown") from None


def _ranged(text: str) -> list[str]:
    found = _RANGE.fullmatch(text)
    if found is None:
        return [server_url(text)]
    first, last = int(found["first"]), int(found["last"])
    if not 1 <= first <= last <= 65535 or last - first >= MOST_TARGETS:
        raise ArgumentTypeError(
            f"a range of ports goes up, from 1 to 65535, and has {MOST_TARGETS:,} ports at most, got {text!r}"
        )
    return [server_url(f"{found['before']}{port}{found['path'] or ''}") for port in range(first, last + 1)]


def server_url(text: str) -> str:
    """An http(s) address, perhaps with a path; `host:port` alone is http. Raises ArgumentTypeError."""
    if _BARE.fullmatch(text):
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        whole = _PLACE.fullmatch(parts.netloc) is not None
        address = ":" in host or host.replace(".", "").isdigit()
        known = bool(ip_address(host.partition("%")[0])) if address else _HOST.fullmatch(host) is not None
        usable = (
            whole
            and known
            and parts.scheme in ("http", "https")
            and not parts.query
            and not parts.fragment
            and port != 0
        )
    except ValueError:  # of a port, of brackets, or of an IP address
        usable = False
    if not usable or not text.isascii() or not text.isprintable() or " " in text:
        raise ArgumentTypeError(f"must be an address such as http://127.0.0.1:8000, got {text!r}")
    bare = text.rstrip("/")
    for end in ("/v1", "/prometheus/metrics", "/metrics"):  # where people have it from
        bare = bare.removesuffix(end)
    return bare


def target(url: str, name: str = "", kv: tuple[KvEndpoint, ...] = ()) -> Target:
    """Of an address that `server_url` gave: its user apart. Without a name it is called by its place."""
    parts = urlsplit(url)
    user, _, place = parts.netloc.rpartition("@")
    return Target(name or f"{place}{parts.path}", f"{parts.scheme}://{place}{parts.path}", user, kv)


def header(text: str) -> tuple[tuple[str, str], ...]:
    """`Name: value` to be sent with every request. Raises ArgumentTypeError, which does not tell it."""
    name, colon, value = text.partition(":")
    value = value.strip()
    if not colon or not _TOKEN.fullmatch(name) or not value or not value.isascii() or not value.isprintable():
        raise ArgumentTypeError("must be 'Name: value' in printable ASCII; what came is not shown")
    if name.lower() in _NOT_OURS:
        raise ArgumentTypeError(f"{name} is set by the connection itself")
    return ((name, value),)


def kv_endpoint(text: str) -> tuple[KvEndpoint, ...]:
    """`tcp://host:port`, and after a comma the one where past events can be had again. Raises ArgumentTypeError."""
    events, comma, replay = text.partition(",")
    for part in (events, replay) if comma else (events,):
        found = _ENDPOINT.fullmatch(part)
        if found is None or (found["port"] and not 1 <= int(found["port"]) <= 65535):
            raise ArgumentTypeError(
                f"must be an address such as tcp://127.0.0.1:5557, or two with a comma in between, got {text!r}"
            )
    return (KvEndpoint(events, replay or None),)


def fleet(path: Path) -> tuple[Target, ...]:
    """The servers of a file: a line each, an address or a range, perhaps a name, perhaps `kv=` endpoints.

    `#` begins a comment. Raises ArgumentTypeError that names file and line.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_FLEET_FILE + 1)
    except OSError as error:
        raise ArgumentTypeError(f"{path}: {error.strerror or error}") from None
    except ValueError:  # of its text, or of its name
        raise ArgumentTypeError(f"{path}: is not UTF-8 text") from None
    if len(text) > _FLEET_FILE:
        raise ArgumentTypeError(f"{path}: has more than {_FLEET_FILE:,} characters")
    out: list[Target] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = _COMMENT.sub("", line).split()
        if words:
            try:
                out += _listed(words)
            except ArgumentTypeError as error:
                raise ArgumentTypeError(f"{path}: line {number}: {error}") from None
    if not out:
        raise ArgumentTypeError(f"{path}: must name a server, and names none")
    return tuple(out)


def _listed(words: Sequence[str]) -> list[Target]:
    urls = server_urls(words[0])
    kv: tuple[KvEndpoint, ...] = ()
    name = ""
    for word in words[1:]:
        if word.startswith("kv="):
            kv += kv_endpoint(word.removeprefix("kv="))
        elif "=" in word or name:
            raise ArgumentTypeError(f"after the address come a name and kv=tcp://host:port, got {word!r}")
        elif not word.isprintable():
            raise ArgumentTypeError(f"a name must be printable, got {word!a}")
        else:
            name = word
    if kv and len(urls) > 1:
        raise ArgumentTypeError("kv= is of one server, not of a range")
    if len(urls) == 1:
        return [target(urls[0], name, kv)]
    return [target(url, f"{name}:{urlsplit(url).port}" if name else "") for url in urls]


def distinct(targets: Iterable[Target]) -> tuple[Target, ...]:
    """All of them, if each is another server with another name. Raises ArgumentTypeError that says which is not."""
    out = tuple(targets)
    names: dict[str, Target] = {}
    urls: dict[str, Target] = {}
    for one in out:
        if one.url in urls:
            raise ArgumentTypeError(f"{one.url} is named twice")
        if one.name in names:
            raise ArgumentTypeError(f"two servers are called {one.name}: {names[one.name].url} and {one.url}")
        names[one.name] = urls[one.url] = one
    if len(out) > MOST_TARGETS:
        raise ArgumentTypeError(f"{len(out):,} servers are named, and {MOST_TARGETS:,} is the most")
    return out


def with_kv(one: Target, kv: tuple[KvEndpoint, ...]) -> Target:
    """The same server with endpoints of its KV events. Raises ArgumentTypeError where one is named twice."""
    if len({endpoint.events for endpoint in kv}) < len(kv):
        raise ArgumentTypeError("an endpoint is named twice")
    return replace(one, kv=kv)


def no_steps(target: Target) -> str:
    """Why the metrics of one server alone are shown."""
    if target.kv:
        return "KV events are shown beside metrics: leave --kv-events out (kv= in a fleet file)"
    return "leave --source metrics out"
