"""A command line that cannot work ends at once, with the option and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.options import OWN, parse


def test_everyone_takes_part_where_it_is_worth_the_time():
    options = parse(["--server", "vllm=http://127.0.0.1:8001/v1"])
    assert options.works == ("burst", "single", "ragged", "shared-prefix")
    assert options.servers == {"vllm": "http://127.0.0.1:8001"}
    assert options.participants("burst") == ("offline", "floor", "http", "generate", "generate_batch", "vllm")
    assert options.participants("ragged") == ("offline", "floor", "static", "http", "generate", "vllm")
    assert options.repeats == 3


def test_only_those_named_take_part_in_their_order():
    options = parse(["--only", "http,a,floor,offline", "--server", "a=http://x", "--work", "single,burst"])
    assert options.participants("single") == ("offline", "floor", "http", "a")
    assert options.works == ("single", "burst")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--work", "burst,brust"], "--work: must be of burst, single, ragged, shared-prefix, got 'brust'"),
        (["--only", "vllm"], f"--only: must be of {', '.join(OWN)}, got 'vllm'"),
        (["--only", "floor,http"], "it needs offline too"),
        (["--server", "vllm"], "must be NAME=URL, as vllm=http://127.0.0.1:8001, got 'vllm'"),
        (["--server", "v=ftp://x"], "must be NAME=URL"),
        (["--server", "http=http://x"], "the name 'http' is taken"),
        (["--server", "a=http://x", "--server", "a=http://y"], "the name 'a' is taken"),
        (["--repeats", "0"], "--repeats: must be a whole number from 1 to 1000, got '0'"),
        (["--scale", "2"], "--scale: must be a number from 0.001 to 1, got '2'"),
        (["--plot", "a.gif"], "--plot: must end with .svg or .txt, got 'a.gif'"),
        (["--json", "/no/such/folder/a.json"], "--json: there is no folder /no/such/folder"),
        (["--json", "/tmp"], "--json: must be a file, and /tmp is a folder"),
        (["--only", ""], f"--only: must be of {', '.join(OWN)}, got ''"),
        (["--quantize", "int3"], "argument --quantize: invalid choice: 'int3'"),
        (["--kv-memory", "much"], "--kv-memory: must be a size"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_files_are_taken_where_they_can_be_written(tmp_path):
    options = parse(["--json", str(tmp_path / "a.json"), "--plot", "plot.txt"])
    assert (options.json, options.plot) == (tmp_path / "a.json", Path("plot.txt"))
