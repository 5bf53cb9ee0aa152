"""Who is let in, and how: headers as they are given and sent, users in addresses, certificates."""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path

import pytest
from aiohttp import web
from servers_like import ServerLike
from test_breaking import loadgen, write_trace

from loadgen.access import OWN, Access, basic, hidden, read_header, read_headers, written
from loadgen.keys import Keys
from loadgen.options import metrics_url, server_address, server_url
from loadgen.settings import Settings
from tests.loadgen.results.sample_runs import header, write_run
from tests.servers.certificates import make_authority
from tests.servers.pages import Kind


def test_a_key_goes_before_another_authorization() -> None:
    headers = (("X-Team", "blue"), ("authorization", "Basic x"))
    assert Access(headers=headers).sent == dict(headers)
    assert Access("k", headers).sent == {"X-Team": "blue", "Authorization": "Bearer k"}
    assert "blue" not in repr(Access("k", headers))
    assert "blue" not in repr(Keys("k", headers=headers))


@pytest.mark.parametrize(
    ("line", "header"),
    [("A: b", ("A", "b")), ("x-y:  c: d ", ("x-y", "c: d")), ("X-Empty:", ("X-Empty", ""))],
)
def test_a_header_is_read_as_it_is_written(line: str, header: tuple[str, str]) -> None:
    assert read_header(line) == header
    assert read_headers(written((header, header))) == (header, header)


@pytest.mark.parametrize(
    "line", ["s3cret", ": s3cret", "a b: s3cret", "ä: s3cret", "A: s3cret\x07", "Content-Length: s3cret"]
)
def test_what_is_no_header_is_refused_without_its_value(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected|allowed") as error:
        read_header(line)
    assert "s3cret" not in str(error.value)


def test_a_user_in_an_address_is_kept_apart() -> None:
    address = server_address("https://me:p%40ss@host:8000/v1/")
    assert (address, address.user) == ("https://host:8000", ("me", "p@ss"))
    assert server_address("http://host").user is None
    assert basic("me", "p@ss") == "Basic " + base64.b64encode(b"me:p@ss").decode()
    for convert in (server_url, metrics_url):
        with pytest.raises(argparse.ArgumentTypeError, match="without a user or password"):
            convert("http://me:s3cret@host")
    with pytest.raises(argparse.ArgumentTypeError, match=r"got 'http://\.\.\.@host:99999'"):
        server_address("http://me:s3cret@host:99999")
    with pytest.raises(argparse.ArgumentTypeError, match=r"got 'http://\.\.\.@host'"):
        server_address("http://me:s3/cret@host")


def test_metrics_may_be_at_any_address() -> None:
    assert metrics_url("http://host:9090/federate?match[]=x") == "http://host:9090/federate?match[]=x"
    assert metrics_url("http://[::1]:8002") == "http://[::1]:8002"


def test_a_run_that_goes_on_believes_whom_it_believed() -> None:
    before = Settings(file="t", ca_file="/a.pem")
    assert Keys("k").as_before(before) == Keys("k", ca_file="/a.pem")
    assert Keys(ca_file="/b.pem").as_before(before).ca_file == "/b.pem"
    assert Keys(insecure=True).as_before(before).ca_file is None


@pytest.mark.parametrize("workers", [1, 2])
async def test_all_that_lets_in_goes_with_every_request_and_into_no_file(tmp_path: Path, workers: int) -> None:
    folder, out = tmp_path / "ca", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    authority = make_authority(folder)
    trace, more = write_trace(tmp_path / "t.jsonl", 4), tmp_path / "headers"
    more.write_text("X-Other: als0-s3cret\n\n")
    async with ServerLike("vllm", tls=authority.server) as server:
        code, printed, err = await loadgen(
            *("replay", trace, "--url", server.url.replace("https://", "https://me:p4ss-s3cret@")),
            *("--ca-file", authority.ca, "--header", "X-Team: t0k-s3cret", "--header-file", more),
            *("--workers", workers, "--out", out / "run.jsonl", "--json", out / "figures.json"),
        )
    assert code == 0, err
    given = basic("me", "p4ss-s3cret")
    assert set(server.asked) >= {"/v1/models", "/v1/chat/completions", "/metrics", "/tokenize"}
    for headers in server.headers:
        assert (headers["X-Team"], headers["X-Other"], headers["Authorization"]) == ("t0k-s3cret", "als0-s3cret", given)
    written_down = b"".join(path.read_bytes() for path in out.iterdir()) + printed.encode() + err.encode()
    assert b"s3cret" not in written_down
    assert given.split()[1].encode() not in written_down
    settings = json.loads((out / "figures.json").read_text())["settings"]
    assert (settings["headers"], settings["insecure"]) == (["X-Other", "X-Team"], False)
    assert settings["ca_file"] == str(authority.ca)


def test_what_was_sent_is_hidden_in_the_words_of_a_server() -> None:
    sent = Access("k-s3cret", (("X-Team", "t-s3cret"), ("X-Short", "ab"))).sent
    told = "no Bearer k-s3cret or k-s3cret, nor about t-s3cret; loadgen"
    assert hidden({**OWN, **sent}, told) == "no ... or ..., nor about ...; loadgen"
    user = {"Authorization": basic("me", "p4ss-s3cret")}
    assert hidden(user, f"{user['Authorization']} is me:p4ss-s3cret") == "... is me:..."


class Repeats(ServerLike):
    """Refuses what is asked, with all headers that came, by one status for each kind of failure."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        told = " ".join(f"{name}={value}" for name, value in request.headers.items())
        if request.path in ("/v1/chat/completions", "/tokenize") and len(self.bodies) > 1:
            body = {"error": {"message": told, "code": request.headers["X-Team"]}}
            return web.json_response(body, status=(401, 429, 500)[len(self.asked) % 3])
        return await super()._answer(request)


@pytest.mark.parametrize("how", ["--api-key", "--url"])
async def test_a_server_that_repeats_what_it_was_sent_tells_no_file_of_it(tmp_path: Path, how: str) -> None:
    trace, out = write_trace(tmp_path / "t.jsonl", 6), tmp_path / "out"
    out.mkdir()
    async with Repeats("vllm") as server:
        url = server.url.replace("//", "//me:p4ss-s3cret@") if how == "--url" else server.url
        code, printed, err = await loadgen(
            *("replay", trace, "--url", url, "--header", "X-Team: t0k-s3cret"),
            *("--out", out / "run.jsonl", "--json", out / "figures.json"),
            **({} if how == "--url" else {"LOADGEN_API_KEY": "k3y-s3cret"}),
        )
        assert code == 1, err
    exports = [(f"--{kind}", out / kind) for kind in ("csv", "html", "vllm-json")]
    code, more, err = await loadgen("report", out / "run.jsonl", *(word for pair in exports for word in pair))
    assert (code, len(list(out.iterdir()))) == (0, 5), err
    assert "X-Team=..." in printed
    written_down = b"".join(path.read_bytes() for path in out.iterdir()) + (printed + more + err).encode()
    assert b"s3cret" not in written_down
    assert basic("me", "p4ss-s3cret").split()[1].encode() not in written_down


class Moved(ServerLike):
    """Sends to another server for all but its models and answers."""

    elsewhere = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/v1/"):
            return await super()._answer(request)
        return web.Response(status=307, headers={"Location": f"{self.elsewhere}{request.path}"})


@pytest.mark.parametrize("kind", ["vllm", "paged-engine"])
async def test_what_lets_in_goes_to_no_other_server(tmp_path: Path, kind: Kind) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 2)
    async with ServerLike("vllm") as other, Moved(kind) as server:
        server.elsewhere = other.url
        code, _, err = await loadgen("replay", trace, "--url", server.url, "--header", "X-Team: t0k-s3cret")
        assert code == 0, err
        assert len(server.bodies) == 2
        assert other.asked == []


async def test_a_certificate_that_is_not_believed(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    trace = write_trace(tmp_path / "t.jsonl", 2)
    async with ServerLike("vllm", tls=authority.server) as server:
        code, _, err = await loadgen("replay", trace, "--url", server.url)
        assert code == 3
        assert "--ca-file names the certificate of its authority; --insecure believes any certificate" in err
        code, out, err = await loadgen("replay", trace, "--url", server.url, "--insecure", "--ca-file", authority.ca)
        assert (code, "--ca-file and --insecure: give one of them" in err) == (2, True)
        code, out, err = await loadgen("replay", trace, "--url", server.url, "--insecure")
    assert code == 0, err
    assert err.startswith("Warning: --insecure: any certificate is believed")
    assert "certificate was not checked (--insecure)" in " ".join(out.split())


async def test_certificates_that_a_run_was_begun_with_and_are_gone(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", 2)
    head = header(2, 2, file=str(trace), url="https://127.0.0.1:9", ca_file=str(tmp_path / "gone.pem"))
    write_run(tmp_path / "run.jsonl", [], None, head)
    code, _, err = await loadgen("resume", tmp_path / "run.jsonl")
    assert code == 2
    assert f"settings.ca_file {tmp_path / 'gone.pem'}: cannot be read" in err
