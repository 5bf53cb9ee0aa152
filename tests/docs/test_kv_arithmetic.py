"""docs/kv-arithmetic.md shows what its commands print, and every figure of its text is in a command or its output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kv-arithmetic.md").read_text()
EXAMPLES = re.findall(r"```sh\n(.*?)\n```\n\n```text\n(.*?)\n```", PAGE, re.S)
NUMBER = re.compile(r"\d+(?:[,.]\d+)*")


@cache
def output(command: str) -> str:
    bin_folder = Path(sys.executable).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PAGED_ENGINE_")}
    environment["PATH"] = f"{bin_folder}:{environment['PATH']}"
    done = subprocess.run(command, shell=True, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_command_is_shown_with_its_output() -> None:
    assert len(EXAMPLES) == PAGE.count("```sh") == PAGE.count("```text") >= 5


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_a_command_prints_what_the_page_shows(command: str, shown: str) -> None:
    assert shown in output(command)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    "figures",
    [
        "200 used (4.9 %)",
        "5 blocks 80 slots, 10 empty (14.3 % of the sequence)",
        "apart 488.28 GiB",
        "shared 1,000 MiB 125 full blocks (1,000 tokens), held once",
        "shared 992 MiB 62 full blocks (992 tokens), held once",
    ],
)
def test_the_known_exercises_come_out(figures: str) -> None:
    assert figures in " ".join(" ".join(output(command) for command, _ in EXAMPLES).split())


def test_no_figure_of_the_text_is_made_up() -> None:
    prose = re.sub(r"```.*?```|^#+ .*?$", "", PAGE, flags=re.S | re.M)
    known = {number for command, _ in EXAMPLES for number in NUMBER.findall(f"{command} {output(command)}")}
    assert set(NUMBER.findall(prose)) - known == set()
