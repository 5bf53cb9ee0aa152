"""Keys: where they come from, what is none, and that no message tells one."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli import make_parser
from engine.keys import digest, hide_keys, is_one_of, key, name_of, read_keys, without_secrets
from engine.serve_command import settings
from engine.server.origins import allowed_host, allowed_origin
from engine.server.settings import ServeSettings

SECRET = "sk-Very$ecret~1"


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command line that ends before an engine is started."""
    return subprocess.run(
        [sys.executable, "-m", "engine.cli", "serve", "--model", "tiny", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def parsed(*arguments: str) -> ServeSettings:
    return settings(make_parser().parse_args(["serve", *arguments]))


def key_file(folder: Path, text: str | bytes, mode: int = 0o600) -> str:
    path = folder / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("text", ["12345678", SECRET, "k" * 512, "!~{}\"'\\,"])
def test_what_is_a_key(text: str) -> None:
    assert key(text) == text


@pytest.mark.parametrize(
    "text", ["", "1234567", "k" * 513, "with space", "with\ttab", "with\nline", "k\xe4seglocke", "\udcff" * 9]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a key must") as refused:
        key(text)
    assert not text or text not in str(refused.value)


def test_keys_come_from_all_places_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = key_file(tmp_path, "# of clients\n\n  file-key-1  \r\nfile-key-2\nfile-key-1\n")
    monkeypatch.setenv("PAGED_ENGINE_ADMIN_KEY", "admin-key-1  admin-key-2")
    access = parsed("--api-key", "line-key-1", "file-key-2", "--api-key-file", file).access
    assert access.api_keys == tuple(map(digest, ("line-key-1", "file-key-2", "file-key-1")))
    assert access.admin_keys == tuple(map(digest, ("admin-key-1", "admin-key-2")))
    assert "file-key" not in repr(access)


def test_comments_in_a_file(tmp_path: Path) -> None:
    file = key_file(tmp_path, "bobs-key-1 # bob\n# nobody\nanns#key#1\t#ann # once more\n  #\nlast-key-1#")
    assert read_keys(None, file, "--api-key") == tuple(map(digest, ("bobs-key-1", "anns#key#1", "last-key-1#")))


def test_a_pipe_is_a_file_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"piped-key-1\n")
    os.close(writer)
    assert read_keys(None, f"/dev/fd/{reader}", "--api-key") == (digest("piped-key-1"),)
    os.close(reader)
    assert capsys.readouterr().err == ""


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.keys.PIPE_SECONDS", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(argparse.ArgumentTypeError, match="nobody has written to this pipe"):
        read_keys(None, str(pipe), "--api-key")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must hold at least one key"),
        ("\n # none\n\n", "must hold at least one key"),
        ("good-key-1\nshort\n", "line 2: a key must have 8 to 512 characters, got 5"),
        (f"good-key-1\n{SECRET} {SECRET}\n", "line 2: a key must be of printable ASCII"),
        (b"\xff\xfe" + SECRET.encode(), "it is not UTF-8"),
        (b"k" * (1 << 20) + b"\n\n", "more than 1,048,576 bytes"),
    ],
)
def test_bad_files(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=words) as refused:
        read_keys(None, key_file(tmp_path, text), "--admin-key")
    assert str(refused.value).startswith(f"--admin-key-file {tmp_path / 'keys'}")
    assert SECRET not in str(refused.value)
    assert "good-key-1" not in str(refused.value)


@pytest.mark.parametrize("name", ["missing", "", "."])
def test_files_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"--api-key-file.*cannot read it"):
        read_keys(None, str(tmp_path / name), "--api-key")


@pytest.mark.parametrize("variable", ["PAGED_ENGINE_API_KEY_FILE", "PAGED_ENGINE_ADMIN_KEY_FILE"])
def test_a_file_that_the_environment_names(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "missing"))
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{variable} {tmp_path}/missing: cannot read it: No such"):
        parsed()
    option = "--" + variable.removeprefix("PAGED_ENGINE_").lower().replace("_", "-")
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{option} {tmp_path}/other: cannot read it"):
        parsed(option, str(tmp_path / "other"))
    monkeypatch.setenv(variable, "")
    with pytest.raises(SystemExit):
        parsed()
    assert f"{variable}: must be a file's name, got ''" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o622, True)]
)
def test_a_file_that_others_may_read_brings_a_warning(
    tmp_path: Path, mode: int, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_keys(None, key_file(tmp_path, SECRET, mode), "--api-key") == (digest(SECRET),)
    told = capsys.readouterr().err
    assert ("other users of this machine" in told) == warned
    assert SECRET not in told


def test_a_key_is_of_one_kind(tmp_path: Path) -> None:
    done = serve("--api-key", "one-key-1", SECRET, "--admin-key-file", key_file(tmp_path, SECRET))
    assert done.returncode == 2
    assert "--api-key and --admin-key" in done.stderr
    assert SECRET not in done.stderr


BAD = "no key: " + SECRET


@pytest.mark.parametrize(
    "arguments",
    [
        ("--api-key", BAD),
        ("--admin-key", "good-key-1", BAD),
        (f"--api-key={BAD}",),
        ("--api-keys", SECRET),
        (f"--api-keys={SECRET}",),
        (f"--api={SECRET}",),
        (f"--adm={SECRET}", "--nonsense"),
        ("--api-key", f"-{SECRET}"),
        ("--api-key", f"-{SECRET}", "--nonsense"),
        ("--admin-key", SECRET, "--", SECRET),
        ("--api-key", SECRET, "--port", "x"),
    ],
)
def test_a_bad_command_line_tells_no_key(arguments: tuple[str, ...]) -> None:
    done = serve(*arguments)
    assert done.returncode == 2
    assert SECRET not in done.stderr + done.stdout
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["PAGED_ENGINE_API_KEY", "PAGED_ENGINE_ADMIN_KEY"])
@pytest.mark.parametrize("text", [f"short {SECRET}", f"{SECRET}\xe4", " ", ""])
def test_a_bad_environment_tells_no_key(name: str, text: str) -> None:
    done = serve(**{name: text})
    assert done.returncode == 2
    assert ("API" if "API" in name else "ADMIN").lower() in done.stderr.lower()
    assert SECRET not in done.stderr + done.stdout


def test_an_unrelated_message_is_left_as_it_is() -> None:
    words = ["paged-engine", "serve", "--api-key", "abc", "defg", "--api-key-file", "/path/of/keys", "--port", "portx"]
    message = "argument --port: got portx; abc, defg; /path/of/keys"
    assert hide_keys(message, words) == "argument --port: got portx; abc, ...; /path/of/keys"


def test_all_keys_are_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared: list[bytes] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(b) or compare(a, b))
    known = tuple(map(digest, ("first-key", "second-key", "third-key")))
    for shown, found in (("first-key", True), ("third-key", True), ("fourth-key", False)):
        compared.clear()
        assert is_one_of(digest(shown), known) == found
        assert compared == list(known)
    assert not is_one_of(digest(""), ())


def test_a_name_tells_keys_apart_and_tells_none() -> None:
    assert name_of(digest(SECRET)) == f"key:{digest(SECRET).hex()[:8]}"
    assert name_of(digest(SECRET)) != name_of(digest(SECRET + "x"))


def test_an_environment_without_secrets() -> None:
    secrets = ("PAGED_ENGINE_API_KEY", "PAGED_ENGINE_ADMIN_KEY", "PAGED_TOP_API_KEY", "OPENAI_API_KEY")
    others = {"PATH": "/bin", "PAGED_ENGINE_API_KEY_FILE": "keys", "HF_TOKEN": "hub", "PAGED_ENGINE_PORT": "1"}
    assert without_secrets({**dict.fromkeys(secrets, SECRET), **others}) == others


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("https://chat.example", "https://chat.example"),
        ("HTTPS://Chat.Example:443", "https://chat.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:80", "http://[::1]"),
        ("app://obsidian.md", "app://obsidian.md"),
    ],
)
def test_origins(text: str, normal: str) -> None:
    assert allowed_origin(text) == normal
    assert parsed("--allowed-origin", text).access.allowed_origins == (normal,)


@pytest.mark.parametrize(
    "text",
    ["*", "null", "", "chat.example", "https://", "https://a/", "https://a/b", "https://*.a", "https://a:x", "://a"],
)
def test_what_is_no_origin(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"https://chat\.example:8443"):
        allowed_origin(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Gpu.Example", "gpu.example"),
        ("gpu.", "gpu"),
        ("10.0.0.7", "10.0.0.7"),
        ("::1", "::1"),
        ("[fe80::1]", "fe80::1"),
    ],
)
def test_hosts(text: str, name: str) -> None:
    assert allowed_host(text) == name


@pytest.mark.parametrize("text", ["*", "", "a:80", "http://a", "a b", "a/b", "*.a", "-a", "a" * 300])
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="without a port"):
        allowed_host(text)


@pytest.mark.parametrize("host", ["0", "0.0.0.0", "::", "::ffff:0.0.0.0"])
def test_beyond_loopback_a_key_is_needed(host: str) -> None:
    for keys in ((), ("--admin-key", SECRET)):
        done = serve("--host", host, *keys)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "--host" in line
        assert "--insecure" in line
