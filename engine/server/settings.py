"""How a server behaves, as one frozen value: what it takes, who may ask, how it ends and comes back. No HTTP here."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.keys import KeyDigest

MiB = 1 << 20
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Limits(msgspec.Struct, frozen=True):
    """What one client, and all together, may take. Sizes are in bytes, times in seconds; 0 seconds: no limit."""

    max_body: int = 32 * MiB  # of one request
    max_body_memory: int = 256 * MiB  # of all bodies that are being read or worked on
    max_prompt_tokens: int | None = None  # None: what the model takes
    max_n: int = 128  # n, best_of and beams of one request
    max_stop_strings: int = 64
    max_logprobs: int = 20
    max_queue: int = 4096  # requests without a first token, choices counted one by one
    max_queue_per_client: int = 2048
    max_connections: int = 4096
    max_step_readers: int = 64  # of /engine/steps
    header_timeout: float = 10.0  # from a connection's first byte to the end of the headers
    body_timeout: float = 60.0  # for a whole body
    keep_alive_timeout: float = 75.0  # a connection without a request
    write_timeout: float = 60.0  # a client that reads nothing of its answer
    request_timeout: float = 3600.0  # a request, from its arrival to its end


class Access(msgspec.Struct, frozen=True):
    """Who may ask. Without keys whoever reaches the port may, so it listens on loopback alone unless told otherwise.

    Of keys it has digests alone: no message or crash report that shows the settings can tell one.
    """

    api_keys: tuple[KeyDigest, ...] = ()
    admin_keys: tuple[KeyDigest, ...] = ()
    allowed_hosts: tuple[str, ...] = ()  # names of this server, in lower case
    allowed_origins: tuple[str, ...] = ()  # of web pages that may ask
    on_loopback: bool = True  # where it listens: browsers of this machine are then its neighbours, and Host is checked
    show_text: bool = True  # /engine/requests/ID and /engine/blocks/N tell tokens and text


class Recovery(msgspec.Struct, frozen=True):
    """Coming back after the core's death, and ending."""

    max_restarts: int = 10  # starts in a row that may fail before the server gives up; 0: the first death ends it
    drain_timeout: float = 30.0  # seconds that requests have to end when the server is asked to stop


class Logging(msgspec.Struct, frozen=True):
    format: LogFormat = "text"
    level: LogLevel = "info"
    requests: bool = False  # a line for each request that ended


class ServeSettings(msgspec.Struct, frozen=True):
    names: tuple[str, ...]  # of the model, as clients may call it
    limits: Limits = Limits()
    access: Access = Access()
    recovery: Recovery = Recovery()
    logging: Logging = Logging()
