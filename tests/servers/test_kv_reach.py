"""Why a publisher is not heard, by what a plain connection meets."""

from __future__ import annotations

import asyncio

from servers.kv_reach import why_unheard
from tests.servers.kv_publisher import KvPublisher


async def test_a_publisher_has_nothing_against_it():
    with KvPublisher() as publisher:
        assert await why_unheard(publisher.endpoint) == ""


async def test_what_stands_against_it(tmp_path):
    async def says(words):
        async def answer(reader, writer):
            writer.write(words)
            writer.close()

        return await asyncio.start_server(answer, "127.0.0.1", 0)

    reasons = []
    for words in (b"SSH-2.0", b""):
        server = await says(words)
        reasons.append(await why_unheard(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        server.close()
        await server.wait_closed()
    assert reasons == ["what listens there does not speak ZMQ", "the connection was closed at once"]
    assert await why_unheard("tcp://127.0.0.1:1") == "connection refused: nothing listens there"
    assert await why_unheard(f"ipc://{tmp_path}/none") == "no such file or directory"
