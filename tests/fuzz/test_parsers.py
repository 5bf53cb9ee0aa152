"""`make fuzz`, as much as is quick (PAGED_TOP_FUZZ_INPUTS: more): readers raise the errors that they name alone."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.mutator import Mutator
from tests.fuzz.target import Target
from tests.fuzz.targets import BY_NAME, TARGETS

INPUTS = os.environ.get("PAGED_TOP_FUZZ_INPUTS", "300")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.parsers", *arguments], capture_output=True, text=True, check=False
    )


def test_readers_raise_only_the_errors_that_they_name(tmp_path: Path) -> None:
    done = command("--count", INPUTS, "--jobs", "1", "--save", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    told = dict(re.findall(r"^(\S+) +ok .* MiB  (.*)$", done.stdout, re.MULTILINE))
    assert told.keys() == BY_NAME.keys()
    for name, outcomes in told.items():  # bad inputs came among good ones
        counts = [int(count.replace(",", "")) for count in re.findall(r"(\d[\d,]*) \w", outcomes)]
        assert sum(counts) == int(INPUTS), name
        assert len(counts) > 1 or not BY_NAME[name].named or name in ("sse-steps", "options"), (name, outcomes)


WHOLE = [target for target in TARGETS if target.name != "options"]  # of which no text is right for all


@pytest.mark.parametrize("target", WHOLE, ids=[target.name for target in WHOLE])
def test_what_is_damaged_was_good_before(target: Target, tmp_path: Path) -> None:
    """Every reader takes its own seeds: else all that is found would be that they are bad."""
    expected = {"step-stream": "Unreachable", "frames": "BadFrame"}
    for data in target.seeds():
        error = target.take(data, tmp_path)
        assert (error.__name__ if error else None) == expected.get(target.name), data[:300]


def test_the_same_seed_makes_the_same_inputs() -> None:
    target = BY_NAME["body-chat"]
    first, second = target.generator(), target.generator()
    made = [first(random.Random(number)) for number in range(50)]
    assert made == [second(random.Random(number)) for number in range(50)]
    assert len(set(made)) > 40


@pytest.mark.parametrize("binary", [False, True])
def test_any_seed_can_be_damaged(binary: bool) -> None:
    for seeds in ([b""], [b"\n"], [b"\xff" * 5], [b"{}"]):
        mutator = Mutator(seeds, binary=binary)
        for number in range(300):
            mutator.make(random.Random(number))


WRONG = {
    "raise LookupError('oh')": "LookupError: oh",
    "raise ValueError": "ValueError says nothing",
    "while True: pass": "Hangs",
    "os.abort()": "the process died (exit code -6)",
    "signal.setitimer(signal.ITIMER_REAL, 0), time.sleep(99)": "hangs for more than 1 s",
    "held = [bytes(1 << 20) for _ in range(3000)]": "MemoryError",
}
BROKEN = """
import os, signal, sys, time
from pathlib import Path
from tests.fuzz import parsers, targets

def reader(what):
    def read(data, folder):
        if len(data) > 20:
            exec(what)
    return read

parsers.INPUT_SECONDS, parsers.STUCK_SECONDS = 0.2, 1.0
for number, what in enumerate(sys.argv[2:]):
    targets.BY_NAME[str(number)] = targets.Target(str(number), lambda: [b"{}" * 9], reader(what), (ValueError,))
names = [str(number) for number in range(len(sys.argv) - 2)]
sys.exit(parsers.run(names, 500, 1, 2, Path(sys.argv[1])))
"""


def test_what_goes_wrong_is_told_with_its_input(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path), *WRONG], capture_output=True, text=True, check=False
    )
    assert done.returncode == len(WRONG), done.stdout + done.stderr
    told = dict(re.findall(r"^(\d) +FAILED(.*?)^  the input", done.stdout, re.MULTILINE | re.DOTALL))
    for number, (what, problem) in enumerate(WRONG.items()):
        assert problem in told[str(number)], what
        assert len((tmp_path / f"{number}-1").read_bytes()) > 20
