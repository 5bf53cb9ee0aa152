"""Who reaches an address that is listened on, and whether a Host header names it. As the engine's server has it."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address


def is_loopback(name: str) -> bool:
    """Whether a name or address is this machine for everyone who asks there."""
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return name.lower().removesuffix(".") == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def is_beyond_loopback(host: str) -> bool:
    """Whether others may reach what listens on `host`: one of its addresses does. Raises OSError or UnicodeError."""
    found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return not all(is_loopback(str(address[0])) for *_, address in found)


def name_in(header: str) -> str:
    """The name in a Host header: in lower case, without port, brackets and a dot at its end."""
    lower = header.lower()
    name = lower[1:].partition("]")[0] if lower.startswith("[") else lower.partition(":")[0]
    return name.removesuffix(".")
