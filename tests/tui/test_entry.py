"""Each program from its first statement on: Ctrl-C while it loads is quiet, and is told by the exit code."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

# As an installed script is, with Ctrl-C at the moment a module is looked for.
PROGRAM = """
import os, re, signal, sys

class Interrupt:
    def find_spec(name, path=None, target=None):
        if name == {at!r}:
            interrupt()

def interrupt(*lost):
    os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt)
sys.argv = ["program", *{arguments!r}]
from {module} import {function}
sys.exit({function}())
"""
SCRIPTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.mark.parametrize(
    ("script", "at"),
    [
        ("paged-top", "tui.cli"),
        ("paged-top", "argparse"),
        ("paged-top", "tui.options"),
        ("paged-top", "tui.terminal"),  # once it runs
        ("loadgen", "loadgen.cli"),
        ("loadgen", "loadgen.options"),
        ("paged-engine", "engine.cli"),
        ("paged-engine", "engine.protocol"),
        ("paged-engine", "engine.serve_command"),
    ],
)
def test_ctrl_c_while_a_program_loads_is_quiet(script: str, at: str) -> None:
    module, function = SCRIPTS[script].split(":")
    arguments = ["play", "tests/tui/recording.jsonl.gz", "--once"] if script == "paged-top" else ["serve"]
    code = PROGRAM.format(at=at, arguments=arguments, module=module, function=function)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr, done.stdout) == (130, "", "")


@pytest.mark.parametrize("package", ["tui", "loadgen", "engine"])
def test_a_package_runs_as_its_program_does(package: str) -> None:
    done = subprocess.run([sys.executable, "-m", package, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: " in done.stdout


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    """As in the background of a script."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + PROGRAM.format(
        at="tui.options", arguments=["--help"], module="tui.__main__", function="main"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("package", "at"), [("tui", "tui.terminal"), ("engine", "engine.serve_command")])
def test_ctrl_c_in_a_callback_that_cannot_raise_is_not_lost(package: str, at: str) -> None:
    """A module's lock has one."""
    arguments = ["play", "tests/tui/recording.jsonl.gz", "--once"] if package == "tui" else ["serve"]
    code = PROGRAM.format(at=at, arguments=arguments, module=f"{package}.__main__", function="main")
    lost = "import time, weakref; it = set(); dies = weakref.ref(it, interrupt); del it; time.sleep(20)"
    code = code.replace("            interrupt()", f"            {lost}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=15)
    assert (done.returncode, done.stderr, done.stdout) == (130, "", "")
