"""Where KV events are published: ZeroMQ endpoints, as options give them. No ZeroMQ here."""

from __future__ import annotations

import argparse
import ipaddress
import re

import msgspec

from engine.server.origins import is_loopback

DEFAULT_TOPIC = "kv-events"
MOST_TOPIC = 200  # characters
_ENDPOINT = re.compile(r"tcp://(?P<host>\*|\[[^\[\]]+\]|[^:\[\]]+):(?P<port>[0-9]{1,5})")


class KvPublishing(msgspec.Struct, frozen=True):
    """Endpoints as `tcp_endpoint` makes them; `replay` is empty where nothing is told again. Port 0: any free one."""

    endpoint: str
    replay: str = ""
    topic: str = DEFAULT_TOPIC


def tcp_endpoint(text: str) -> str:
    """An option's endpoint, with its host as an address. Raises ArgumentTypeError."""
    match = _ENDPOINT.fullmatch(text)
    host = None if match is None else _address(match["host"])
    if match is None or host is None or int(match["port"]) > 65535:
        raise argparse.ArgumentTypeError(
            f"must be tcp://ADDRESS:PORT, as tcp://127.0.0.1:5557 (port 0: any free one), got {text!r}"
        )
    return f"tcp://{host}:{int(match['port'])}"


def topic(text: str) -> str:
    """An option's topic, perhaps empty. Raises ArgumentTypeError."""
    if len(text) > MOST_TOPIC or not text.isprintable():
        raise argparse.ArgumentTypeError(f"must be at most {MOST_TOPIC} printable characters, got {text!r}")
    return text


def is_open(endpoint: str) -> bool:
    """Whether others than this machine reach it."""
    return bool(endpoint) and not is_loopback(endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]"))


def _address(host: str) -> str | None:
    if host in ("*", "localhost"):
        return "0.0.0.0" if host == "*" else "127.0.0.1"
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    is_bracketed = host.startswith("[")
    if is_bracketed != (address.version == 6):
        return None
    return f"[{address}]" if is_bracketed else str(address)
