"""Keys, hosts and origins, asked of real servers; and that no secret and no text gets where it must not be."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from engine.keys import digest, name_of
from tests.engine.server.conftest import Server, start

API, OTHER_API, ADMIN = "first-client-key", "second-client-key", "the-admin-key"
PAGE = "https://chat.example"
SMALL = ("--model", "tiny", "--kv-memory", "4MiB")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--api-key", API, OTHER_API, "--admin-key", ADMIN)
    allowed = ("--allowed-origin", PAGE, "HTTPS://Other.Example:443", "--allowed-host", "Gpu.example", "10.0.0.7")
    server = start(tmp_path_factory.mktemp("keyed"), *SMALL, *options, *allowed, "--no-text")
    yield server
    assert server.stop() == 0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str | None:
        return json.loads(self.body)["error"]["code"]


def ask(server: Server, method: str, path: str, *headers: tuple[str, str], host: bool = True) -> Answer:
    """With just these headers, also twice the same, and Host unless there is to be none."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    connection.putrequest(method, path, skip_host=not host, skip_accept_encoding=True)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    connection.close()
    return answer


def bearer(key: str) -> tuple[str, str]:
    return "Authorization", f"Bearer {key}"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([bearer(API)], 200),
        ([bearer(OTHER_API)], 200),
        ([bearer(ADMIN)], 200),
        ([("authorization", f"bEARER   {API}")], 200),
        ([], 401),
        ([bearer("")], 401),
        ([bearer(API[:-1])], 401),
        ([bearer(API + "x")], 401),
        ([bearer(API.upper())], 401),
        ([bearer(f"{API} {OTHER_API}")], 401),
        ([bearer(f"{API},{OTHER_API}")], 401),
        ([bearer(digest(API).hex())], 401),
        ([("Authorization", API)], 401),
        ([("Authorization", f"Basic {API}")], 401),
        ([("Authorization", f"Bearer{API}")], 401),
        ([bearer(API), bearer("other-key")], 401),
        ([bearer("other-key"), bearer(API)], 401),
        ([("X-Api-Key", API)], 401),
        ([("Cookie", f"Authorization=Bearer {API}")], 401),
        ([bearer("\xff" * 20)], 401),
        ([bearer("k" * 4000)], 401),
    ],
)
def test_keys_of_clients(keyed: Server, headers: list[tuple[str, str]], status: int) -> None:
    answer = ask(keyed, "GET", "/v1/models", *headers)
    assert answer.status in ((status, 400) if len(headers) > 1 else (status,))
    if answer.status == 401:
        assert answer.code == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert all(key.encode() not in answer.body for key in (API, OTHER_API, ADMIN, "other-key"))


def test_keys_in_the_address_are_none(keyed: Server) -> None:
    assert ask(keyed, "GET", f"/v1/models?api_key={API}&key={API}").status == 401


def test_an_api_key_is_no_admin(keyed: Server) -> None:
    answer = ask(keyed, "PATCH", "/engine/control", bearer(API))
    assert (answer.status, answer.code) == (403, "forbidden")
    assert "www-authenticate" not in answer.headers
    assert ask(keyed, "GET", "/engine/control", bearer(ADMIN)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "stranger", "client", "admin"),
    [
        ("GET", "/nowhere", 401, 404, 404),
        ("GET", "/engine/nowhere", 401, 404, 404),
        ("GET", "/engine", 401, 404, 404),
        ("GET", "//engine/snapshot", 401, 404, 404),
        ("GET", "/engine/../engine/snapshot", 401, 404, 404),
        ("GET", "/engine%2Fsnapshot", 401, 403, 404),
        ("GET", "/%65ngine/snapshot", 401, 403, 200),
        ("GET", "/ENGINE/snapshot", 401, 404, 404),
        ("GET", "/engine/snapshot/", 401, 404, 404),
        ("POST", "/engine/snapshot", 401, 403, 405),
        ("DELETE", "/v1/models", 401, 405, 405),
        ("PROPFIND", "/engine/requests/1", 401, 403, 405),
        ("OPTIONS", "/engine/control", 401, 403, 204),
        ("POST", "/health", 405, 405, 405),
        ("HEAD", "/health", 200, 200, 200),
        ("HEAD", "/metrics", 401, 200, 200),
        ("HEAD", "/engine/snapshot", 401, 403, 200),
        ("TRACE", "/v1/models", 401, 405, 405),
    ],
)
def test_paths_and_methods_that_are_none(
    keyed: Server, method: str, path: str, stranger: int, client: int, admin: int
) -> None:
    assert ask(keyed, method, path).status == stranger
    assert ask(keyed, method, path, bearer("another-key")).status == stranger
    assert ask(keyed, method, path, bearer(API)).status == client
    assert ask(keyed, method, path, bearer(ADMIN)).status == admin


def test_without_keys_whatever_is_shown_is_nobodys(server: Server) -> None:
    for headers in ([], [bearer("none")], [("Authorization", "Basic x")]):
        assert ask(server, "GET", "/engine/control", *headers).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:1", 200),
        ("localhost.", 200),
        ("127.0.0.1", 200),
        ("127.9.9.9:8000", 200),
        ("[::1]", 200),
        ("[::1]:8000", 200),
        ("[::ffff:127.0.0.1]:8000", 200),
        ("gpu.example:80", 200),
        ("10.0.0.7", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("notgpu.example", 403),
        ("10.0.0.8", 403),
        ("0.0.0.0", 403),
        ("[::]", 403),
        ("[::ffff:10.0.0.8]", 403),
        ("2130706433", 403),
        ("0x7f.1", 403),
        ("", 400),
        ("localhost:", 400),
        ("localhost:99999", 400),
        ("localhost:8000:8000", 400),
        ("localhost:80a", 400),
        ("user@localhost", 400),
        ("localhost/evil.example", 400),
        ("localhost, evil.example", 400),
        ("evil.example localhost", 400),
        ("::1", 400),
        ("[::1", 400),
        ("[::1]x", 400),
        ("[localhost]", 400),
        ("l\xf6calhost", 400),
    ],
)
def test_hosts(keyed: Server, host: str, status: int) -> None:
    key = bearer(API)
    answer = ask(keyed, "GET", "/v1/models", ("Host", host), key, host=False)
    assert answer.status == status
    if status == 403:
        assert "--allowed-host" in answer.body.decode()
        assert ask(keyed, "GET", "/engine/snapshot", ("Host", host), bearer(ADMIN), host=False).status == 403
        assert ask(keyed, "GET", "/health", ("Host", host), host=False).status == 200


def test_one_host_is_needed(keyed: Server) -> None:
    assert ask(keyed, "GET", "/health", host=False).status == 400
    for second in ("localhost", "evil.example"):
        for order in (("localhost", second), (second, "localhost")):
            hosts = [("Host", name) for name in order]
            assert ask(keyed, "GET", "/v1/models", *hosts, bearer(API), host=False).status == 400


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (PAGE, 200),
        ("https://other.example", 200),
        ("{own}", 200),
        ("null", 403),
        ("", 403),
        ("*", 403),
        ("http://chat.example", 403),
        ("https://chat.example:8443", 403),
        ("https://chat.example.evil.example", 403),
        ("https://evil.example", 403),
        ("https://chat.example, https://evil.example", 403),
        ("https://{address}", 403),
        ("http://localhost:1", 403),
        ("http://127.0.0.1", 403),
        ("file://", 403),
    ],
)
def test_origins(keyed: Server, origin: str, status: int) -> None:
    own = keyed.url
    origin = origin.format(own=own, address=own.removeprefix("http://"))
    answer = ask(keyed, "GET", "/v1/models", ("Origin", origin), bearer(API))
    assert answer.status == status
    shown = answer.headers.get("access-control-allow-origin")
    assert shown == (origin if status == 200 and origin != own else None)
    assert answer.headers["vary"] == "Origin"
    wrong = ask(keyed, "GET", "/v1/models", ("Origin", origin), bearer("another-key"))
    assert wrong.status == (401 if status == 200 else 403)
    assert wrong.headers.get("access-control-allow-origin") == shown  # an allowed page can read errors, and no other
    open_to_all = ask(keyed, "GET", "/health", ("Origin", origin))
    assert open_to_all.status == 200
    assert open_to_all.headers.get("access-control-allow-origin") == shown


def test_two_origins_are_none(keyed: Server) -> None:
    for pages in ((PAGE, PAGE), (PAGE, "https://evil.example")):
        answer = ask(keyed, "GET", "/v1/models", *(("Origin", page) for page in pages), bearer(API))
        assert answer.status in (400, 403)
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-origin", 200), ("none", 200)])
def test_sites(keyed: Server, site: str, status: int) -> None:
    assert ask(keyed, "GET", "/v1/models", ("Sec-Fetch-Site", site), bearer(API)).status == status
    assert ask(keyed, "GET", "/v1/models", ("Sec-Fetch-Site", site), ("Origin", PAGE), bearer(API)).status == 200


def test_without_keys_other_pages_are_kept_out(server: Server) -> None:
    evil = ("Origin", "https://evil.example")
    for method, path in (("PATCH", "/engine/control"), ("POST", "/v1/completions"), ("GET", "/engine/requests")):
        answer = ask(server, method, path, evil)
        assert (answer.status, answer.code) == (403, "forbidden")
        assert not [name for name in answer.headers if name.startswith("access-control")]
    rebound = ("Host", f"evil.example:{server.url.rpartition(':')[2]}")
    own = ("Origin", f"http://{rebound[1]}")
    assert ask(server, "GET", "/engine/requests", rebound, own, host=False).status == 403
    assert ask(server, "GET", "/engine/requests", rebound, host=False).status == 403


def test_preflights(keyed: Server) -> None:
    wanted = ("Access-Control-Request-Method", "PATCH")
    asks = ("Access-Control-Request-Headers", "authorization,content-type")
    answer = ask(keyed, "OPTIONS", "/engine/control", ("Origin", PAGE), wanted, asks)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-headers"] == "Authorization, Content-Type, X-Request-Id"
    assert answer.headers["access-control-allow-methods"] == "DELETE, GET, PATCH, POST, PUT"
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    for page in ("https://evil.example", "null", keyed.url.replace("http", "https")):
        refused = ask(keyed, "OPTIONS", "/engine/control", ("Origin", page), wanted, asks)
        assert refused.status == 403
        assert not [name for name in refused.headers if name.startswith("access-control")]
    assert ask(keyed, "OPTIONS", "/v1/models", ("Origin", PAGE)).status == 401  # no preflight


def test_a_stream_is_an_allowed_pages_too(keyed: Server) -> None:
    headers = {"Origin": PAGE, "Authorization": f"Bearer {API}"}
    body = {"prompt": "a", "max_tokens": 2, "stream": True}
    with httpx.stream("POST", f"{keyed.url}/v1/completions", json=body, headers=headers, timeout=30) as answer:
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "[DONE]" in answer.read().decode()


def test_no_text_is_told_to_anyone_where_it_is_off(keyed: Server) -> None:
    for path in ("/engine/requests/cmpl-1", "/engine/blocks/0"):
        answer = ask(keyed, "GET", path, bearer(ADMIN))
        assert (answer.status, answer.code) == (403, "text_off")
        assert ask(keyed, "GET", path).status == 401
        assert ask(keyed, "GET", path, bearer(API)).code == "forbidden"
    assert ask(keyed, "GET", "/engine/requests", bearer(ADMIN)).status == 200


def test_records_and_snapshots_tell_no_text_and_no_token(keyed: Server) -> None:
    marker = "zqxjkvwy" * 30
    tokens = list(marker.encode())  # tiny's tokens are bytes
    body = {"prompt": marker, "max_tokens": 200, "ignore_eos": True, "stream": True, "temperature": 0}
    client, admin = ({"Authorization": f"Bearer {key}"} for key in (API, ADMIN))
    with (
        httpx.Client(base_url=keyed.url, timeout=60) as http,
        http.stream("GET", "/engine/steps", headers=admin) as steps,
        http.stream("POST", "/v1/completions", json=body, headers=client) as answer,
    ):
        chunks = (line for line in answer.iter_lines() if line.startswith("data: {"))
        written = json.loads(next(chunks).removeprefix("data: "))["choices"][0]["text"]
        told = http.get("/engine/snapshot", headers=admin).text + http.get("/engine/requests", headers=admin).text
        assert '"status":"running"' in told  # so that there is something to tell of
        written += "".join(json.loads(chunk.removeprefix("data: "))["choices"][0]["text"] for chunk in chunks)
        for line in steps.iter_lines():
            told += line
            if line.startswith("data: ") and json.loads(line.removeprefix("data: ")).get("left"):
                break
        told += http.get("/engine/snapshot", headers=admin).text + http.get("/metrics", headers=client).text
    assert len(written) > 20
    for text in (marker, written):
        assert text[:6] not in told
    for separator in (",", ", "):
        assert separator.join(map(str, tokens[:4])) not in told


def test_secrets_are_told_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        "api": "env-api-key-8f3a",
        "more": "file-api-key-77c1",
        "admin": "env-admin-key-51e0",
        "root": "file-admin-key-0d2b",
    }
    for name, key in (("api.keys", keys["more"]), ("admin.keys", keys["root"])):
        (tmp_path / name).write_text(f"# {name}\n\n{key}\n")
        (tmp_path / name).chmod(0o600)
    monkeypatch.setenv("PAGED_ENGINE_API_KEY", keys["api"])
    monkeypatch.setenv("PAGED_ENGINE_ADMIN_KEY", keys["admin"])
    monkeypatch.setenv("PAGED_ENGINE_CRASH_DIR", str(tmp_path / "crashes"))
    files = ("--api-key-file", str(tmp_path / "api.keys"), "--admin-key-file", str(tmp_path / "admin.keys"))
    logs = ("--log-requests", "--log-format", "json", "--log-level", "debug", "--fault", "step-error@3")
    server = start(tmp_path, *SMALL, *files, *logs)
    process = psutil.Process(server.process.pid)
    (core,) = process.children()
    told = "\n".join([*process.cmdline(), *core.environ().values(), *core.cmdline()])
    attempts = [*keys.values(), "a-stranger's-key", *(f"{key}x" for key in keys.values())]
    statuses = set()
    for shown in attempts:
        for method, path, body in (
            ("GET", "/v1/models", None),
            ("GET", "/metrics", None),
            ("GET", "/health", None),
            ("GET", "/nowhere", None),
            ("GET", "/engine/snapshot", None),
            ("GET", "/engine/requests/x", None),
            ("GET", "/openapi.json", None),
            ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3}),
            ("POST", "/v1/completions", {"prompt": 1, "stream": "x"}),
        ):
            headers = {"Authorization": f"Bearer {shown}"}
            answer = httpx.request(method, server.url + path, json=body, headers=headers, timeout=30, verify=False)
            statuses.add(answer.status_code)
            told += answer.text + str(answer.headers)
    assert {200, 400, 401, 403, 404, 500} <= statuses  # the last is the fault
    assert server.stop(signal.SIGTERM) == 0
    assert server.process.stdout is not None
    logged = server.process.stdout.read() + server.stderr.read_text()
    assert name_of(digest(keys["api"])) in logged
    told += logged
    for path in (tmp_path / "crashes").rglob("*"):
        told += path.read_bytes().decode(errors="replace")
    for key in keys.values():
        assert key not in told


def test_a_server_that_cannot_start_tells_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGED_ENGINE_API_KEY", "the-key-of-clients")
    command = [sys.executable, "-m", "engine.cli", "serve", "--model", "no-such-model", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "the-key-of-clients" not in done.stdout + done.stderr
