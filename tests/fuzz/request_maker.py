"""Requests that no schema describes: damaged bodies, headers and framing, garbage, and clients that go away."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterable

from tests.fuzz.attempt import Attempt, End
from tests.fuzz.mutator import Mutator
from tests.fuzz.targets import CHATS, COMPLETIONS, CONTROLS, LOAD, TOKENIZES

CHAT, TEXT, CONTROL = "/v1/chat/completions", "/v1/completions", "/engine/control"
_POSTS = (
    ("POST", CHAT, CHATS),
    ("POST", TEXT, COMPLETIONS),
    ("POST", "/tokenize", TOKENIZES),
    ("POST", "/detokenize", ({"tokens": [1, 2, 3]},)),
    ("PATCH", CONTROL, CONTROLS),
    ("PUT", "/engine/loads/fuzz", (LOAD,)),
)
_PATHS = (
    "/", "/v1/models", "/v1/models/tiny", "/metrics", "/health", "/version", "/openapi.json", "/engine/snapshot",
    "/engine/steps", "/engine/control", "/engine/requests", "/engine/requests/cmpl-1", "/engine/blocks/0",
    "/engine/loads", "/engine/cache/clear", CHAT, TEXT, "/tokenize", "/detokenize", "/engine/loads/fuzz",
)  # fmt: skip
_METHODS = (
    "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "G@T", "",
    "A" * 300, "\x00", "GET GET", "PRI",
)  # fmt: skip
_ODD_PATHS = (
    "*", "//", "/%00", "/%ff", "/%", "/%zz", "/../../etc/passwd", "/engine/blocks/%D9%A3", "/engine/blocks/-1",
    "/engine/blocks/1e3", "/engine/blocks/99999999999999999999", "/engine/requests/" + "a" * 5000, "/v1/models/%2F",
    "/engine/requests/%0d%0a", "/engine/steps?from=" + "9" * 300, "/engine/steps?from=-1", "/engine/steps?from",
    "/engine/steps?from=%D9%A3&from=1", "/engine/requests/x?from=1e9", "http://elsewhere/v1/models", "?", "/#",
    "/engine/loads/%20", "/engine/loads/" + "a" * 65, "/v1/models/" + "é" * 20, "/" + "a" * 9000, "/\x7f", "/\x80\xff",
    "/v1/models/..;/", "/engine/steps?" + "a=1&" * 2000, "\\", "/v1//models", "/V1/models",
)  # fmt: skip
_HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Host", ("", "a b", "evil.example", "127.0.0.1:99999", "[::1", "é", "a" * 300, "localhost:80:80")),
    ("Content-Type", ("", "text/plain", "application/json; charset=utf-16", "multipart/form-data", "\xff", "a" * 9000)),
    ("Content-Length", ("-1", "+5", "1e3", "99999999999999999999", "0x10", "", "5, 5", "5,6", " 7", "١", "1_0")),
    ("Transfer-Encoding", ("chunked", "gzip, chunked", "chunked, chunked", "identity", "xchunked", "", "chunked\x0b")),
    ("Content-Encoding", ("gzip", "deflate", "br", "zstd", "identity", "x", "gzip, gzip", "compress")),
    ("Connection", ("close", "keep-alive", "upgrade", "close, keep-alive", "\x00")),
    ("Upgrade", ("websocket", "h2c", "TLS/1.0")),
    ("Expect", ("100-continue", "200-ok", "")),
    ("Authorization", ("", "Bearer", "Bearer ", "Basic YTpi", "Bearer " + "x" * 5000, "Bearer \xff", "x")),
    ("X-Request-Id", ("", "a" * 300, "a b", "\xff", "../..", "ok-1")),
    ("Origin", ("null", "http://evil.example", "", "http://localhost:1", "file://", "\xff")),
    ("Accept", ("", "text/html", "*/*;q=abc", "a" * 3000)),
    ("Accept-Encoding", ("gzip", "br;q=1.0", "*", "\x00")),
    ("Range", ("bytes=0-5", "bytes=-1")),
    ("traceparent", ("00-" + "0" * 32 + "-" + "1" * 16 + "-01", "ff", "\xff")),
    ("X-A" + "b" * 9000, ("1",)),
    ("Bad Name", ("1",)),
    ("", ("1",)),
    ("Cookie", ("a=b; " * 500,)),
)  # fmt: skip
# Of each field the least and the most that is allowed, and what computing may trip over.
_EDGES: dict[str, tuple[object, ...]] = {
    "temperature": (0, 5e-324, 1e-38, 1e-7, 1, 100),
    "top_p": (5e-324, 1e-38, 1e-9, 0.5, 1),
    "top_k": (-1, 0, 1, 2, 258, 259, 2**31 - 1),
    "min_p": (0, 5e-324, 0.5, 1),
    "seed": (-(2**63), -1, 0, 2**63 - 1),
    "presence_penalty": (-2, 0, 2),
    "frequency_penalty": (-2, 0, 2),
    "repetition_penalty": (0.01, 1, 100),
    "logit_bias": ({}, {"0": -100}, {"258": 100}, {str(token): -100 for token in range(259)}),
    "n": (1, 2, 16),
    "best_of": (1, 2, 16),
    "max_tokens": (0, 1, 2, 30, 2**31 - 1),
    "min_tokens": (0, 1, 30),
    "stop": ("", "a", "\x00", ["a"] * 64, "\ufffd", "é", "a" * 1024),
    "stop_token_ids": ([], [0], list(range(259))),
    "ignore_eos": (True, False),
    "include_stop_str_in_output": (True, False),
    "skip_special_tokens": (True, False),
    "add_special_tokens": (True, False),
    "stream": (True, True, False),
    "stream_options": ({"include_usage": True, "continuous_usage_stats": True}, {}),
    "prompt_logprobs": (0, 1, 20),
    "priority": (0, 2**31 - 1),
    "timeout": (5e-324, 1e-6, 0.01, 86400),
    "cache_salt": ("a", "\U0001f600" * 256, "\x00"),
    "prefix_cache": (True, False),
    "use_beam_search": (True, False),
    "beam_width": (1, 2, 8, 32),
    "length_penalty": (-10, 0, 1, 10),
    "early_stopping": (True, False, "never"),
    "echo": (True, False),
}
_PROMPTS: tuple[object, ...] = (
    "a", "hello " * 20, "\x00", "é\ufffd\U0001f600", [0], [258], list(range(200)), ["a", "b", "a"], [[1, 2], [1, 2, 3]],
    "a" * 250, "a" * 300, ["a"] * 40,
)  # fmt: skip
_FORGED_STATUS = (505,)  # of a version of HTTP that there is not


class RequestMaker:
    """Attempts by their number: each is the same whenever it is made."""

    def __init__(self, seed: int, *, waiting: float) -> None:
        """`waiting`: the share of unfinished requests that wait for what the server says in the end."""
        self._seed = seed
        self._waiting = waiting
        self._bodies = {
            (method, path): Mutator([json.dumps(body).encode() for body in bodies]) for method, path, bodies in _POSTS
        }
        self._raw = Mutator(
            [_request("GET", "/health"), _request("POST", TEXT, _body({"prompt": "a", "max_tokens": 2}))]
        )
        self._kinds: tuple[tuple[int, Callable[[random.Random], Attempt]], ...] = (
            (40, self._damaged_body),
            (15, self._edges),
            (10, self._headers),
            (8, self._damaged_bytes),
            (8, self._leaving),
            (7, self._chunks),
            (6, self._path),
            (4, self._coded),
            (3, self._unfinished),
            (2, self._pipelined),
            (2, self._garbage),
        )

    def make(self, number: int) -> Attempt:
        chance = random.Random(f"{self._seed}:{number}")
        kinds = [kind for _, kind in self._kinds]
        (kind,) = chance.choices(kinds, [weight for weight, _ in self._kinds])
        return kind(chance)

    def _damaged_body(self, chance: random.Random) -> Attempt:
        (method, path), mutator = chance.choice(list(self._bodies.items()))
        data = mutator.make(chance)
        media = chance.choice(("application/json",) * 8 + ("text/plain", ""))
        return Attempt("damaged body", (_request(method, path, data, [("Content-Type", media)]),), method=method)

    def _edges(self, chance: random.Random) -> Attempt:
        """What is allowed, at its bounds and in any company. Some of it is refused, and none of it may fail."""
        names = chance.sample(list(_EDGES), chance.choice((1, 2, 3, 3, 4, 6, 10)))
        fields = {"max_tokens": 4} | {name: chance.choice(_EDGES[name]) for name in names}
        if chance.random() < 0.4:
            extra = {"logprobs": True, "top_logprobs": chance.choice((0, 1, 20))} if chance.random() < 0.3 else {}
            content = chance.choice(("a", "", "\x00", "é" * 50, [{"type": "text", "text": "x"}] * 3))
            data = _request(
                "POST", CHAT, _body({"messages": [{"role": "user", "content": content}], **fields, **extra})
            )
        else:
            extra = {"logprobs": chance.choice((0, 1, 20))} if chance.random() < 0.3 else {}
            data = _request("POST", TEXT, _body({"prompt": chance.choice(_PROMPTS), **fields, **extra}))
        return Attempt("edges", (data,), method="POST")

    def _headers(self, chance: random.Random) -> Attempt:
        """A good request with headers that are not."""
        method, path, body = _good(chance)
        odd = []
        for _ in range(chance.choice((1, 1, 2, 4))):
            name, values = chance.choice(_HEADERS)
            odd.append((name, chance.choice(values)))
        if chance.random() < 0.1:
            odd = [(f"X-{number}", "a" * chance.choice((1, 200))) for number in range(chance.choice((90, 200, 1000)))]
        if chance.random() < 0.1:
            odd.append(("X-Folded", "a\r\n b"))
        data = _request(method, path, body, odd, host=chance.random() < 0.9)
        return Attempt("headers", (data,), _end(chance), whole=False, method=method, allowed=_FORGED_STATUS)

    def _damaged_bytes(self, chance: random.Random) -> Attempt:
        data = self._raw.make(chance)
        ends = [end for end in (b"\n", b"\r\n", b"\r", b"\0\r\n") if chance.random() < 0.1]
        for end in ends:
            data = data.replace(b"\r\n", end, chance.choice((1, 2, 99)))
        return Attempt("damaged bytes", (data,), _end(chance), whole=False, allowed=_FORGED_STATUS)

    def _leaving(self, chance: random.Random) -> Attempt:
        """Goes away: before the end of the request, at once after it, or in the middle of the answer."""
        body = _body({"prompt": "a" * chance.choice((1, 40)), "max_tokens": 40, "stream": chance.random() < 0.7})
        data = _request("POST", TEXT, body)
        size = chance.choice((len(data), len(data), chance.randint(1, len(data))))
        end: End = chance.choice(("leave", "cut"))
        pause = chance.choice((0.0, 0.0, 0.01, 0.05))
        return Attempt("leaving", (data[:size],), end, whole=False, method="POST", pause=pause)

    def _chunks(self, chance: random.Random) -> Attempt:
        method, path, body = _good(chance, needs_body=True)
        head = _head(method, path, [("Transfer-Encoding", "chunked"), ("Content-Type", "application/json")])
        sizes = [chance.choice((1, 7, 100)) for _ in range(200)]
        chunks, rest = [], body
        for size in sizes:
            if rest:
                chunks.append(b"%x\r\n%b\r\n" % (len(rest[:size]), rest[:size]))
                rest = rest[size:]
        whole = not rest and chance.random() < 0.4
        if not whole:
            at = chance.randint(0, len(chunks))
            chunks.insert(at, chance.choice((
                b"-1\r\n\r\n", b"g\r\n", b"ffffffffffffffffff\r\n", b"\r\n", b"5;a=b\r\nabcde\r\n", b"5\nabcde\n",
                b"3\r\nabcde\r\n", b"1;" + b"a" * 9000 + b"\r\na\r\n", b"0\r\nX: y\r\n", b"00000005\r\nabcde\r\n",
                b" 5\r\n",
            )))  # fmt: skip
        data = b"".join(chunks) + b"0\r\n" + chance.choice((b"\r\n", b"\r\n", b"X-Trailer: a\r\n\r\n"))
        pieces = (head, data) if chance.random() < 0.5 else (head + data[:20], data[20:])
        end: End = "read" if whole else _end(chance)
        return Attempt("chunks", pieces, end, whole=whole, method=method, pause=chance.choice((0.0, 0.01)))

    def _path(self, chance: random.Random) -> Attempt:
        method = chance.choice(_METHODS)
        path = chance.choice(_PATHS if chance.random() < 0.5 else _ODD_PATHS)
        if chance.random() < 0.3:
            path += chance.choice(("?", "?from=x", "?from=1", "/", "%20", "?a[]=1", "#x"))
        version = chance.choice(("HTTP/1.1",) * 6 + ("HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "http/1.1", "HTTP/1.1 "))
        data = _request(method, path, version=version)
        return Attempt("path", (data,), _end(chance), whole=False, method=method, allowed=_FORGED_STATUS)

    def _coded(self, chance: random.Random) -> Attempt:
        """A body in a coding, or said to be: cut, damaged, or small and of megabytes inside."""
        method, path, body = _good(chance, needs_body=True)
        coding = chance.choice(("gzip", "deflate"))
        if chance.random() < 0.1:
            body = body[:-1] + b" " * (8 << 20) + body[-1:]
        data = gzip.compress(body, 6, mtime=0) if coding == "gzip" else zlib.compress(body)
        whole = chance.random() < 0.5
        if not whole:
            data = Mutator([data], binary=True).make(chance)
        coded = [("Content-Encoding", coding), ("Content-Type", "application/json")]
        return Attempt("coded", (_request(method, path, data, coded),), method=method)

    def _unfinished(self, chance: random.Random) -> Attempt:
        """Headers or a body of which the rest never comes."""
        method, path, body = _good(chance, needs_body=True)
        data = _request(method, path, body)
        waits = chance.random() < self._waiting
        end: End = "read" if waits else chance.choice(("half", "leave", "cut"))
        return Attempt("unfinished", (data[: chance.randint(1, len(data) - 1)],), end, whole=False, method=method)

    def _pipelined(self, chance: random.Random) -> Attempt:
        """Several requests at once, the first of them good."""
        later = [self._raw.make(chance) for _ in range(chance.choice((1, 2, 30)))]
        return Attempt("pipelined", (_request("GET", "/version") + b"".join(later),), _end(chance), whole=False)

    def _garbage(self, chance: random.Random) -> Attempt:
        data = chance.choice((
            bytes(chance.randrange(256) for _ in range(chance.choice((1, 30, 3000)))),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n" * 500, b"\n", b"\0" * 10_000, b"SSH-2.0-x\r\n",
            b"GET /health\r\n\r\n",
            b"GET " + b"a" * 100_000, b"a" * 300_000, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000,
        ))  # fmt: skip
        return Attempt("garbage", (data,), _end(chance), whole=False, allowed=_FORGED_STATUS)


def _end(chance: random.Random) -> End:
    """Of what may be a whole request, or the beginning of one."""
    end: End = chance.choice(("try",) * 8 + ("half", "leave"))
    return end


def _good(chance: random.Random, *, needs_body: bool = False) -> tuple[str, str, bytes]:
    """A request that is answered 200, and soon."""
    if not needs_body and chance.random() < 0.3:
        return "GET", chance.choice(("/health", "/v1/models", "/engine/control", "/engine/requests")), b""
    return chance.choice((
        ("POST", TEXT, _body({"prompt": "hello", "max_tokens": 2})),
        ("POST", CHAT, _body({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True})),
        ("POST", "/tokenize", _body({"prompt": "hello"})),
        ("PATCH", CONTROL, _body({"max_wait": 10.0})),
    ))  # fmt: skip


def _body(fields: object) -> bytes:
    return json.dumps(fields).encode()


def _head(
    method: str, path: str, headers: Iterable[tuple[str, str]], version: str = "HTTP/1.1", *, host: bool = True
) -> bytes:
    lines = [f"{method} {path} {version}"] + (["Host: localhost"] if host else [])
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode(
        "utf-8" if any(ord(c) > 255 for line in lines for c in line) else "latin-1"
    )


def _request(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Iterable[tuple[str, str]] = (),
    version: str = "HTTP/1.1",
    *,
    host: bool = True,
) -> bytes:
    headers = list(headers)
    if body or method in ("POST", "PUT", "PATCH"):
        headers.append(("Content-Length", str(len(body))))
    return _head(method, path, headers, version, host=host) + body
