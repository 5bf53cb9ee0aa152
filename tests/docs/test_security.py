"""docs/security.md: servers answer what its tables say, its routes are all there are, and its commands work."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from engine.server.routes import routes
from engine.server.service import Service
from engine.server.settings import ServeSettings
from tests.engine.server.conftest import READY, Server, start

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
README = (ROOT / "README.md").read_text()
API, ADMIN, WRONG = "an-api-key", "an-admin-key", "a-wrong-key"
SMALL = ("--model", "tiny", "--kv-memory", "4MiB")
WITH_KEYS = ("--api-key", API, "--admin-key", ADMIN)


def table(first: str) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table whose first column is called so."""
    lines = PAGE[PAGE.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return head, rows


HEAD, ROWS = table("Route")
KINDS, KIND_ROWS = table("keys that are set")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines() if line.strip()]


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    server = start(folder, *SMALL, *options)
    try:
        yield server
    finally:
        assert server.stop() == 0


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("open")) as server:
        yield server


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("keyed"), *WITH_KEYS) as server:
        yield server


def filled(path: str) -> str:
    return re.sub(r"\{\w+\}", "0", path.replace("{name}", "tiny"))


def asked(server: Server, method: str, path: str, key: str | None = None) -> str:
    """How a table says what came of it: `yes` if the request got as far as its handler, else the status."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with httpx.stream(method, server.url + filled(path), headers=headers, verify=False, timeout=60) as answer:
        if answer.status_code in (401, 403):
            code = {401: "invalid_api_key", 403: "forbidden"}[answer.status_code]
            answer.read()
            assert answer.json()["error"]["code"] == code
            assert ("WWW-Authenticate" in answer.headers) == (answer.status_code == 401)
            return str(answer.status_code)
        assert answer.status_code < 500
        assert answer.status_code != 405
        if answer.status_code == 404:
            answer.read()
            assert "no such route" not in answer.text
        return "yes"


def test_the_rows_are_the_routes() -> None:
    documented = [(route.strip("`"), who) for route, who, *_ in ROWS]
    made = routes(Service(ServeSettings(names=("tiny",))))
    assert documented == [(f"{route.method} {re.sub(r':[^}]+', '', route.path)}", route.who) for route in made]
    assert HEAD[2:] == ["no keys are set", "no key, or a wrong one", "an API key", "an admin key"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("`"))
def test_a_row_is_true(row: list[str], open_server: Server, keyed_server: Server) -> None:
    method, path = row[0].strip("`").split()
    without, unknown, api, admin = row[2:]
    assert asked(open_server, method, path) == without
    assert asked(open_server, method, path, WRONG) == without
    assert asked(keyed_server, method, path) == unknown
    assert asked(keyed_server, method, path, WRONG) == unknown
    assert asked(keyed_server, method, path, API) == api
    assert asked(keyed_server, method, path, ADMIN) == admin
    if method == "GET" and path not in ("/engine/steps", "/engine/cluster/events"):
        answer = httpx.head(keyed_server.url + filled(path), headers={"Authorization": f"Bearer {API}"}, verify=False)
        assert answer.status_code == (200 if api == "yes" else int(api))
    assert asked(keyed_server, "GET", "/nowhere") == "401"


OPTIONS = {"none": (), "`--api-key`": WITH_KEYS[:2], "`--admin-key`": WITH_KEYS[2:], "both": WITH_KEYS}
# Who is answered, of those without a key, with an API key and with an admin key. A key that is not set opens nothing.
ANSWERED = {
    "everyone": ("yes", "yes", "yes"),
    "nobody": ("401", "403", "401"),
    "an API key": ("401", "yes", "401"),
    "an admin key": ("401", "401 or 403", "yes"),
    "an API key or an admin key": ("401", "yes", "yes"),
}


def test_the_kinds_are_all_there_are() -> None:
    assert [row[0] for row in KIND_ROWS] == list(OPTIONS)
    assert KINDS[1:] == ["a client's route", "an admin's route", "may listen beyond loopback"]


@pytest.mark.parametrize("row", KIND_ROWS, ids=lambda row: row[0].strip("`"))
def test_a_kind_of_keys_opens_what_it_says_beyond_loopback_too(row: list[str], tmp_path: Path) -> None:
    beyond = (*OPTIONS[row[0]], "--host", "0.0.0.0")
    if row[3] != "yes":
        assert row[3] == "only with `--insecure`"
        command = [sys.executable, "-m", "engine.cli", "serve", *SMALL, "--port", "0", *beyond]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "--host" in line
        assert "--api-key-file" in line
        beyond += ("--insecure",)
    with serving(tmp_path, *beyond) as server:
        assert ("--insecure: --host: whoever reaches 0.0.0.0" in server.stderr.read_text()) == (row[3] != "yes")
        port = server.url.rpartition(":")[2]
        local = Server(f"http://127.0.0.1:{port}", server.process, server.stderr)
        for path, who in (("/v1/models", row[1]), ("/engine/control", row[2])):
            found = [asked(local, "GET", path, key) for key in (None, API, ADMIN)]
            assert all(got in allowed for got, allowed in zip(found, ANSWERED[who], strict=True)), (path, found)


def test_the_commands_work_in_their_order(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PAGED_ENGINE_PORT": "0",
        "PAGED_ENGINE_MODEL": "tiny",
        "PAGED_ENGINE_KV_MEMORY": "4MiB",
    }
    address, processes = "127.0.0.1:8000", []
    try:
        for command in COMMANDS:
            if command.startswith("paged-engine serve"):
                process = subprocess.Popen(
                    command.split(), env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
                )
                processes.append(process)
                assert process.stdout is not None
                match = READY.match(process.stdout.readline())
                assert match, command
                address = f"127.0.0.1:{match[2].rpartition(':')[2]}"
                continue
            command = command.replace("127.0.0.1:8000", address)
            done = subprocess.run(
                command, shell=True, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            assert '"error"' not in done.stdout
            assert not ("curl" in command and not done.stdout)
    finally:
        for process in processes:
            process.terminate()
            assert process.wait(20) == 0
    for name in ("api.key", "admin.key"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    ignored = Path(__file__).parents[2] / ".gitignore"
    assert "*.key" in ignored.read_text().splitlines()


def test_the_readme_leads_here() -> None:
    section = README[README.index("\n## Security\n") :].removeprefix("\n").split("\n## ")[0]
    assert "(docs/security.md)" in section
    for block in re.findall(r"```sh\n(.*?)```", section, re.S):
        for command in block.splitlines():
            assert command in COMMANDS


def test_a_client_of_openai_shows_its_key(keyed_server: Server) -> None:
    with keyed_server.client as client:
        assert client.with_options(api_key=API).models.list().data[0].id == "tiny"
        with pytest.raises(openai.AuthenticationError) as refused:
            client.models.list()
        assert refused.value.code == "invalid_api_key"
    with httpx.Client(base_url=keyed_server.url, headers={"Authorization": f"bearer  {API}"}) as http:
        assert http.get("/v1/models").status_code == 200
