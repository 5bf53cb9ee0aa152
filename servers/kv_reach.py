"""Why a publisher of KV events cannot be heard, as far as a plain connection shows: ZMQ itself only tries again."""

from __future__ import annotations

import asyncio

SIGNATURE = 0xFF  # what all that speaks ZMQ sends first, without being asked
PATIENCE = 2.0  # seconds for the connection, and
FIRST_WORD = 1.0  # for its first word


async def why_unheard(endpoint: str) -> str:
    """What stands against it in words; empty where a ZMQ socket answers. `endpoint` is one that can be subscribed to.

    It is connected to for a moment, nothing is sent.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await _connect(endpoint)
    except TimeoutError:
        return f"no connection within {PATIENCE:g} s"
    except ConnectionRefusedError:
        return "connection refused: nothing listens there"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    try:
        async with asyncio.timeout(FIRST_WORD):
            first = await reader.read(1)
    except TimeoutError:
        return "what listens there says nothing, which no publisher does: it speaks another protocol"
    except OSError:
        first = b""
    finally:
        writer.close()
    if not first:
        return "the connection was closed at once"
    return "" if first[0] == SIGNATURE else "what listens there does not speak ZMQ"


async def _connect(endpoint: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc":
        return await asyncio.open_unix_connection(address)
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port))
