"""Options: the command line before the environment before the config file; what is wrong is named."""

from __future__ import annotations

import os

import pytest

from tui import command_line, focus, themes
from tui.command_line import OPTIONS, parse
from tui.options import without_options


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("PAGED_TOP_") and name != "PAGED_TOP_CACHE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "paged-top").mkdir()


@pytest.fixture
def config(tmp_path):
    return tmp_path / "paged-top" / "config.toml"


def options(*arguments):
    return parse(arguments)[1]


def test_the_command_line_goes_before_the_environment_before_the_file(config, monkeypatch):
    assert options().theme == "auto"
    config.write_text('theme = "light"\nframes = 5\nreadonly = true\n')
    assert (options().theme, options().frames, options().readonly) == ("light", 5.0, True)
    monkeypatch.setenv("PAGED_TOP_THEME", "mono")
    monkeypatch.setenv("PAGED_TOP_READONLY", "0")
    assert (options().theme, options().readonly) == ("mono", False)
    assert options("--theme", "dark", "--readonly").theme == "dark"
    assert options("--readonly").readonly is True
    assert options("--no-readonly").readonly is False


def test_every_option_can_come_from_each_place(config, monkeypatch):
    fleet = config.parent / "fleet"
    fleet.write_text("http://g:1")
    texts = {"url": "http://h:1", "theme": "16", "panel": "batch", "frames": "2", "web_port": "99", "step": "7",
             "fleet": str(fleet), "source": "metrics", "header": "A: b", "kv_events": "tcp://h:1"}  # fmt: skip
    for option in OPTIONS:
        if option.name == "config":
            continue
        text = texts.get(option.name, "2" if option.parse else "0" if option.default else "1")
        if option.name in ("admin_key_file", "api_key_file"):
            (config.parent / "key").write_text("from-the-file")
            text = str(config.parent / "key")
        arguments = ["play", "x.jsonl"] if not option.live else []
        if option.name in ("kv_events", "source"):
            arguments = ["--url", "http://h:1"]
        config.write_text(f'{option.name} = "{text}"\n')
        from_file = getattr(options(*arguments), option.name)
        config.write_text("")
        monkeypatch.setenv(option.variable, text)
        from_environment = getattr(options(*arguments), option.name)
        monkeypatch.delenv(option.variable)
        switch = option.flag.replace("--", "--no-", 1) if option.default else option.flag
        given = [option.flag, text] if option.parse else [switch]
        assert from_file == from_environment == getattr(options(*arguments, *given), option.name) != option.default


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("theme = 'pink'", "theme: must be one of auto, dark, light, colour-blind, 16, mono, got 'pink'"),
        ("frames = 'many'", "frames: must be a number from 0.5 to 60, got 'many'"),
        ("frames = 1000", "frames: must be a number from 0.5 to 60"),
        ("web_port = 0", "web_port: must be a whole number from 1 to 65,535, got '0'"),
        ("colour = 1", "colour: no such option; known are admin_key, admin_key_file, api_key, api_key_file, ascii"),
        ("config = 'x'", "config: no such option"),
        ("readonly = 'perhaps'", "readonly: must be 1 or 0"),
        ("url = 'nowhere'", "url: must be an address"),
        ('"\\u001b[31m" = 1', r"\x1b[31m: no such option"),
        ("step = 1000000000000000000999", "step: must be a whole number"),
        ("theme = " + "[" * 3000, "is not TOML"),
        ("theme = ", "is not TOML"),
        ("step = " + "1" * 5000, "is not TOML"),
        ("\udcff", "is not TOML"),
    ],
)
def test_a_bad_config_file_is_one_line_that_names_file_and_key(config, capsys, text, words):
    config.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SystemExit) as error:
        options()
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert str(config) in said
    assert len(said.splitlines()) == 1


def test_a_config_file_that_is_named_must_exist(capsys, tmp_path, monkeypatch):
    with pytest.raises(SystemExit):
        options("--config", str(tmp_path / "none.toml"))
    assert "none.toml: No such file" in capsys.readouterr().err
    named = tmp_path / "mine.toml"
    named.write_text("ascii = true")
    assert options("--config", str(named)).ascii is True
    monkeypatch.setenv("PAGED_TOP_CONFIG", str(named))
    assert options().ascii is True


def test_play_has_options_of_its_own(capsys):
    played = options("play", "x.jsonl", "--speed", "4", "--step", "12", "--theme", "light")
    assert (str(played.play), played.speed, played.step, played.theme) == ("x.jsonl", 4.0, 12, "light")
    assert played.url is None
    assert not played.demo
    for arguments in (["--speed", "2"], ["play"], ["play", "x", "--url", "http://h"], ["play", "x", "--speed", "0"]):
        with pytest.raises(SystemExit) as error:
            options(*arguments)
        assert error.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_words_listed_in_the_command_line_are_those_there_are():
    assert ("auto", *themes.THEMES) == command_line._THEMES
    assert command_line._PANELS == focus.PANELS


def test_a_key_is_given_by_itself_or_in_a_file_and_never_told(tmp_path, monkeypatch, capsys):
    file = tmp_path / "key"
    file.write_text("from-file\nsecond line\n")
    assert options("--admin-key-file", str(file)).admin_key == "from-file"
    assert options("--admin-key-file", str(file), "--admin-key", "itself").admin_key == "itself"
    monkeypatch.setenv("PAGED_TOP_ADMIN_KEY", "of-the-environment")
    assert options().admin_key == "of-the-environment"
    monkeypatch.delenv("PAGED_TOP_ADMIN_KEY")
    file.write_text("s3cret with space\n")
    for arguments, words in (
        (("--admin-key", "s3cret\n"), "argument --admin-key: must be printable ASCII without spaces"),
        (("--admin-key-file", str(file)), "line 1 must be printable ASCII"),
        (("--admin-key-file", str(tmp_path / "none")), "none: No such file or directory"),
        (("--admin-key-file", str(tmp_path)), "Is a directory"),
    ):
        with pytest.raises(SystemExit, match="2"):
            options(*arguments)
        told = capsys.readouterr().err
        assert words in told
        assert "s3cret" not in told


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("# ours\n\n  a-key-of-ours  \nanother-key\n", "a-key-of-ours"),
        ("a-key # since May\n", "a-key"),
        ("a#key\n", "a#key"),
        ("\t# one\r\n#two\r\nthird-key\r\n", "third-key"),
    ],
)
def test_a_key_file_is_read_as_the_engine_reads_it(tmp_path, text, first):
    file = tmp_path / "key"
    file.write_text(text)
    assert options("--admin-key-file", str(file)).admin_key == first


@pytest.mark.parametrize("text", ["", "\n", "# only words\n"])
def test_a_key_file_without_a_key_is_refused(tmp_path, capsys, text):
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        options("--admin-key-file", str(file))
    assert "key: must hold a key, and has none" in capsys.readouterr().err


def test_keys_are_taken_off_the_command_line_of_a_page():
    options = [option for option in OPTIONS if option.name in ("admin_key", "admin_key_file")]
    arguments = [
        "--admin-key",
        "a",
        "--web",
        "--admin-key-file=b",
        "--admin-key=c",
        "--theme",
        "mono",
        "--admin-key-file",
    ]
    assert without_options(arguments, options) == ["--web", "--theme", "mono"]


def test_secrets_of_servers_are_taken_off_it_too():
    given = ["--api-key", "a", "--header=X: b", "--url", "http://h", "--header", "Y: c", "--api-key-file", "d"]
    assert without_options(given, command_line.SECRET) == ["--url", "http://h"]
