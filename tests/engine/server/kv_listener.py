"""A subscriber as routers are, in a process of its own: it prints each message as a line of JSON.

`python -m tests.engine.server.kv_listener ENDPOINT TOPIC`; it says "ready" first. It knows nothing of the engine.
"""

import json
import sys

import msgspec
import zmq


def main(endpoint: str, topic: str) -> None:
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    socket.connect(endpoint)
    print("ready", flush=True)
    while True:
        heard, sequence, payload = socket.recv_multipart()
        time, events, rank = msgspec.msgpack.decode(payload)
        message = {"topic": heard.decode(), "sequence": int.from_bytes(sequence, "big"), "rank": rank}
        print(json.dumps({**message, "time": time, "events": events}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
