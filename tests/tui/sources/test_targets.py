"""Which servers a command line and a fleet file name, and what is wrong with one that names none."""

from __future__ import annotations

from argparse import ArgumentTypeError
from base64 import b64encode

import pytest

from tui.cli import main
from tui.command_line import check, parse
from tui.sources.targets import (
    HttpSettings,
    KvEndpoint,
    Target,
    distinct,
    fleet,
    header,
    kv_endpoint,
    server_urls,
    target,
)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, tmp_path):
    for name in ("URL", "FLEET", "HEADER", "API_KEY", "KV_EVENTS", "SOURCE", "CONFIG"):
        monkeypatch.delenv(f"PAGED_TOP_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def targets(*arguments):
    return parse(arguments)[1].targets


def refused(capsys, *arguments):
    """The line that bad input ends with."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://h:8000-8002", ["http://h:8000", "http://h:8001", "http://h:8002"]),
        ("h:8000-8001", ["http://h:8000", "http://h:8001"]),
        ("https://h:8-9/llm/v1/", ["https://h:8/llm", "https://h:9/llm"]),
        ("[::1]:7-8", ["http://[::1]:7", "http://[::1]:8"]),
        ("http://u:p@h:1-2", ["http://u:p@h:1", "http://u:p@h:2"]),
        ("h:5-5", ["http://h:5"]),
        ("http://a, b:1-2", ["http://a", "http://b:1", "http://b:2"]),
    ],
)
def test_ranges_of_ports(text, urls):
    assert list(server_urls(text)) == urls


@pytest.mark.parametrize(
    "text", ["h:9-8", "h:0-3", "h:65535-65536", "h:1-1025", "h:1-", "h:-5", "h", "http://h,", "ftp://h:1-2"]
)
def test_what_is_no_address_or_range(text):
    with pytest.raises(ArgumentTypeError):
        server_urls(text)


@pytest.mark.parametrize(
    "text", ["http://me:s3,cret@h", "http://me:s3cret@h:9-8", "me:s3cret@h:8000 x", "ftp://me:s3cret@h"]
)
def test_a_password_in_a_bad_address_is_not_told(text):
    with pytest.raises(ArgumentTypeError) as error:
        server_urls(text)
    assert "s3" not in str(error.value)
    assert "cret" not in str(error.value)


def test_several_servers_from_each_place(monkeypatch, tmp_path):
    assert [one.url for one in targets("--url", "http://a", "--url", "b:1-2")] == [
        "http://a",
        "http://b:1",
        "http://b:2",
    ]
    monkeypatch.setenv("PAGED_TOP_URL", "http://c, d:4")
    assert [one.name for one in targets()] == ["c", "d:4"]
    assert [one.name for one in targets("--url", "http://a")] == ["a"]  # instead of them, not besides
    monkeypatch.delenv("PAGED_TOP_URL")
    (tmp_path / "paged-top").mkdir()
    (tmp_path / "paged-top" / "config.toml").write_text('url = ["http://e", "f:1-2"]\n')
    assert [one.name for one in targets()] == ["e", "f:1", "f:2"]


def test_a_fleet_file(tmp_path):
    file = tmp_path / "fleet"
    file.write_text(
        "# ours\n"
        "\n"
        "http://a:8000 kv=tcp://a:5557 kv=tcp://a:5558,tcp://a:5568  # two ranks\n"
        "http://me:word@b:8000/llm  big-one\n"
        "c:8000-8001 small\n"
        "\td:8000-8001\r\n"
    )
    found = fleet(file)
    assert [(one.name, one.url, one.user) for one in found] == [
        ("a:8000", "http://a:8000", ""),
        ("big-one", "http://b:8000/llm", "me:word"),
        ("small:8000", "http://c:8000", ""),
        ("small:8001", "http://c:8001", ""),
        ("d:8000", "http://d:8000", ""),
        ("d:8001", "http://d:8001", ""),
    ]
    assert found[0].kv == (KvEndpoint("tcp://a:5557"), KvEndpoint("tcp://a:5558", "tcp://a:5568"))
    assert targets("--fleet", str(file), "--url", "http://x") == (target("http://x"), *found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://a\nnowhere\n", "line 2: must be an address"),
        ("http://a x=1\n", "line 1: after the address come a name and kv=tcp://host:port, got 'x=1'"),
        ("http://a one two\n", "line 1: after the address"),
        ("http://a kv=5557\n", "line 1: must be an address such as tcp://127.0.0.1:5557"),
        ("a:1-2 kv=tcp://a:5557\n", "line 1: kv= is of one server"),
        ("http://a\nb:1 \x1b[31m\n", "line 2: a name must be printable"),
        ("http://a\nhttp://a/\n", "http://a is named twice"),
        ("http://a one\nhttp://b one\n", "two servers are called one: http://a and http://b"),
        ("h:1-1000\ng:1-25\n", "1,025 servers are named, and 1,024 is the most"),
        ("# none\n", "must name a server, and names none"),
        ("\udcff", "is not UTF-8 text"),
    ],
)
def test_a_bad_fleet_file_is_one_line_that_names_it(tmp_path, capsys, text, words):
    file = tmp_path / "fleet"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    line = refused(capsys, "--fleet", str(file), "--once")
    assert line.startswith("paged-top: error: --fleet: ")
    assert words in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fleet", "/no/such/file"], "--fleet: /no/such/file: No such file"),
        (["--url", "h:1", "--url", "http://h:1/"], "--url: http://h:1 is named twice"),
        (["--kv-events", "tcp://h:1"], "--kv-events is of one --url"),
        (["--url", "h:1-2", "--kv-events", "tcp://h:1"], "--kv-events is of one --url"),
        (["--url", "h:1", "--kv-events", "http://h:1"], "--kv-events: must be an address such as tcp://127.0.0.1:5557"),
        (["--url", "h:1", "--kv-events", "tcp://*:5557"], "--kv-events: must be an address"),
        (["--url", "h:1", "--kv-events", "tcp://h:65536"], "--kv-events: must be an address"),
        (["--url", "h:1", "--kv-events", "tcp://h:1", "--kv-events", "tcp://h:1"], "--kv-events: an endpoint is named"),
        (["--url", "h:1-2", "--source", "steps"], "--source: steps are of one --url"),
        (["--url", "h:1", "--kv-events", "tcp://h:1", "--source", "steps"], "--source: steps have all of KV memory"),
        (["--source", "metrics"], "--source metrics is of a server that runs: name it with --url or --fleet"),
        (["--url", "h:1", "--source", "guess"], "--source: must be one of auto, steps, metrics"),
        (["--url", "h:1", "--every", "0.1"], "--every: must be a number from 0.2 to 60"),
        (["--url", "h:1", "--every", "nan"], "--every: must be a number"),
        (["--url", "h:1", "--ca-file", "/no/such/file"], "--ca-file: /no/such/file: No such file"),
        (["--url", "h:1", "--ca-file", __file__], "has no certificate that can be read (PEM)"),
        (["--url", "h:1", "--ca-file", "x", "--insecure"], "--insecure checks no certificates, and --ca-file says"),
        (["--url", "h:1-2", "--model", "tiny"], "--model is for an engine that is started; --url names one"),
        (["--url", "h:1-2", "--demo"], "--demo is of one engine, and --url names 2"),
        (["--url", "h:1", "--demo", "--source", "metrics"], "--demo is of an engine whose steps are read"),
        (["--header", "no colon s3cret"], "--header: must be 'Name: value'"),
        (["--header", "Host: elsewhere"], "--header: Host is set by the connection itself"),
        (["--api-key", "s3 cret"], "--api-key: must be printable ASCII"),
        (["--api-key-file", "/no/such/file"], "--api-key-file: /no/such/file: No such file"),
    ],
)
def test_bad_input_ends_with_2_and_names_the_flag(capsys, arguments, words):
    line = refused(capsys, *arguments)
    assert words in line
    assert "s3" not in line


def test_events_of_several_ranks_are_read_beside_metrics(monkeypatch):
    options = parse(["--url", "h:1", "--kv-events", "tcp://h:5557,tcp://h:6557", "--kv-events", "tcp://h:5558"])[1]
    both = (KvEndpoint("tcp://h:5557", "tcp://h:6557"), KvEndpoint("tcp://h:5558"))
    assert options.targets == (Target("h:1", "http://h:1", kv=both),)
    assert options.source == "metrics"
    monkeypatch.setenv("PAGED_TOP_KV_EVENTS", "tcp://h:5557,tcp://h:6557 tcp://h:5558")
    assert targets("--url", "h:1")[0].kv == both
    assert kv_endpoint("ipc:///tmp/kv") == (KvEndpoint("ipc:///tmp/kv"),)


def test_which_secret_goes_where(tmp_path):
    one = target("http://me:w%40rd@h:1")
    basic = "Basic " + b64encode(b"me:w@rd").decode()
    assert one.url == "http://h:1"
    assert HttpSettings().headers_for(one) == {"Authorization": basic}
    assert HttpSettings(api_key="k").headers_for(one) == {"Authorization": "Bearer k"}
    assert HttpSettings(admin_key="a").headers_for(one) == {"Authorization": basic}
    assert HttpSettings(api_key="k", admin_key="a").headers_for(one, ours=True) == {"Authorization": "Bearer a"}
    (mine,) = header("authorization:  Token t ")
    told = HttpSettings(api_key="k", headers=(mine, ("X-Tenant", "7"))).headers_for(one, ours=True)
    assert told == {"authorization": "Token t", "X-Tenant": "7"}
    file = tmp_path / "key"
    file.write_text("from-file\n")
    options = parse(
        ["--url", "http://h", "--api-key-file", str(file), "--header", "X-A: s3cret, 2", "--header", "X-B: 3"]
    )[1]
    assert options.http.api_key == "from-file"
    assert options.http.headers == (("X-A", "s3cret, 2"), ("X-B", "3"))
    assert "s3cret" not in repr(options.http)
    assert "from-file" not in repr(options.http)
    assert "w%40rd" not in repr(one)


def test_the_admin_key_is_for_one_server_and_for_no_fleet():
    assert parse(["--url", "http://h", "--admin-key", "a"])[1].http.api_key == "a"
    assert parse(["--url", "h:1-2", "--admin-key", "a"])[1].http.api_key is None


def test_unchecked_certificates_are_warned_of(capsys):
    for url, warned in (("https://h", True), ("http://h", False)):
        parser, options = parse(["--url", url, "--insecure"])
        check(parser, options, terminal=False)
        assert ("warning: --insecure: certificates are not checked" in capsys.readouterr().err) == warned


def test_names_and_addresses_are_told_apart():
    with pytest.raises(ArgumentTypeError, match="two servers are called h:1"):
        distinct([target("http://h:1"), target("https://h:1")])


def test_servers_of_the_command_line_stand_for_those_of_the_environment_and_the_file(monkeypatch, tmp_path):
    listed = tmp_path / "fleet"
    listed.write_text("http://b\nhttp://c\n")
    monkeypatch.setenv("PAGED_TOP_URL", "http://a")
    monkeypatch.setenv("PAGED_TOP_KV_EVENTS", "tcp://a:5557")
    (a,) = targets()
    assert (a.name, a.kv) == ("a", (KvEndpoint("tcp://a:5557"),))
    assert [one.name for one in targets("--fleet", str(listed))] == ["b", "c"]
    assert [one.name for one in targets(f"--fleet={listed}", "--url=http://d")] == ["d", "b", "c"]
    (d,) = targets("--url", "http://d")
    assert (d.name, d.kv) == ("d", ())
    (d,) = targets("--url", "http://d", "--kv-events", "tcp://d:1")
    assert d.kv == (KvEndpoint("tcp://d:1"),)
    monkeypatch.delenv("PAGED_TOP_URL")
    (d,) = targets("--url", "http://d")
    assert d.kv == (KvEndpoint("tcp://a:5557"),)
    config = tmp_path / "config.toml"
    config.write_text(f'fleet = "{listed}"\n')
    monkeypatch.delenv("PAGED_TOP_KV_EVENTS")
    monkeypatch.setenv("PAGED_TOP_CONFIG", str(config))
    assert [one.name for one in targets()] == ["b", "c"]
    assert [one.name for one in targets("--url", "http://d")] == ["d"]
