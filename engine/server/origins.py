"""Names of hosts and origins of web pages, as headers and options give them. No HTTP here."""

from __future__ import annotations

import argparse
import ipaddress
import re

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_PORT = re.compile(r"[0-9]{1,5}")
_DEFAULT_PORTS = {"http": 80, "https": 443}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def split_host(text: str) -> tuple[str, int | None]:
    """Name and port of a Host header, the name in lower case and without brackets. Raises ValueError."""
    lower = text.lower()
    if lower.startswith("["):
        name, bracket, rest = lower[1:].partition("]")
        if not bracket or not isinstance(_address(name), ipaddress.IPv6Address) or (rest and rest[0] != ":"):
            raise ValueError(f"{text!r} is no host")
        port = rest[1:]
    else:
        name, colon, port = lower.partition(":")
        rest = colon + port
        if not _is_name(name):
            raise ValueError(f"{text!r} is no host")
    if rest and not (_PORT.fullmatch(port) and int(port) <= 65535):
        raise ValueError(f"{text!r} has no port from 0 to 65535 after its colon")
    return name.removesuffix("."), int(port) if port else None


def is_loopback(name: str) -> bool:
    """Whether a name or address is this machine for everyone who asks there."""
    address = _address(name)
    return name == "localhost" if address is None else _is_loopback(address)


def allowed_host(text: str) -> str:
    """An option's name of a host. Raises ArgumentTypeError."""
    name = text.lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if _address(name) is None and not _is_name(name):
        raise argparse.ArgumentTypeError(f"must be a name or an address, without a port, got {text!r}")
    return name


def allowed_origin(text: str) -> str:
    """An option's origin, as browsers write it. Raises ArgumentTypeError."""
    found = normal_origin(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"must be a scheme, a host and perhaps a port, as https://chat.example:8443, got {text!r}"
        )
    return found


def normal_origin(text: str) -> str | None:
    """An origin in the one form that equal ones share; None if it is none, as `null` and `*`."""
    scheme, separator, host = text.partition("://")
    scheme = scheme.lower()
    if not separator or not _SCHEME.fullmatch(scheme):
        return None
    try:
        name, port = split_host(host)
    except ValueError:
        return None
    shown = f"[{name}]" if ":" in name else name
    is_default = port is None or port == _DEFAULT_PORTS.get(scheme)
    return f"{scheme}://{shown}" if is_default else f"{scheme}://{shown}:{port}"


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 253 and all(_LABEL.fullmatch(label) for label in name.removesuffix(".").split("."))


def _address(name: str) -> Address | None:
    try:
        return ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return None


def _is_loopback(address: Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
