"""docs/scaling.md: its commands work, with fewer engines and requests than the page has, and so does its picture."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.scaling import Point, picture, points

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines() if line.strip()]
SMALLER = (
    (r"--requests \d+", "--requests 3"),
    (r"--workers [\d,]+", "--workers 2,4"),
    (
        r"^python -m benchmarks.scaling$",
        "python -m benchmarks.scaling --engines 2 --requests 5 --streams 4 --tokens 10",
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's files are written; what its commands read is the repository's."""
    found = tmp_path_factory.mktemp("scaling")
    for name in ("traces", "tests", "benchmarks", "docs"):
        (found / name).symlink_to(ROOT / name)
    return found


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) == 5


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works(command: str, folder: Path) -> None:
    for pattern, smaller in SMALLER:
        command = re.sub(pattern, smaller, command)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PAGED_ENGINE_")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if "--json >" in command:
        predictions = json.loads((folder / "scaling.json").read_text())["predictions"]
        assert predictions
        assert all(one["simulation"]["complete"] for one in predictions)
    else:
        assert done.stdout.strip()
    if "docs.scaling" in command:
        assert (folder / "scaling.svg").read_text().startswith("<svg")


def test_a_point_is_what_was_offered_and_how_much_of_it_was_good() -> None:
    control = {"prefill": 1, "decode": 3, "replicas": 0}
    one = {
        "pools": {"control": control},
        "settings": {"crowd": 2.0, "speed": 1.0},
        "goodput": {"share": 0.5},
        "queue": {"time_to_first_token": {"p90": 0.25}},
    }
    (point,) = points(json.dumps({"predictions": [one]}), recorded_seconds=3600.0, sessions=100)
    assert point == Point(engines=4, offered=100 * 24 * 2, good=100 * 24, ttft_p90=0.25)


def test_the_picture_has_every_point_and_the_million() -> None:
    drawn = picture([Point(1, 1e5, 9e4, 0.2), Point(1000, 1e8, 9e7, 0.5)])
    assert drawn.count("<circle") == 2
    assert "a million a day" in drawn
    assert "0.50 s" in drawn
    assert "a million a day" not in picture([Point(1, 1e3, 1e3, 0.2), Point(10, 1e4, 1e4, 0.5)])
