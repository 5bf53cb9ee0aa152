"""In processes of their own: a watchdog ends the one that it is in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.watchdog import HUNG

# What is told of time is whether something was noticed, not when.
SETUP = """
import os, re, time, threading
from engine import watchdog
watchdog.LOOK_SECONDS, watchdog.FIRST_STEPS = 0.02, 0
def hung(age):
    os.write(1, b"hung")
    os._exit(watchdog.HUNG)
"""
FOREVER = "re.match('(a*)*b', 'a' * 60)"  # holds Python's lock


def ran(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", SETUP + code], capture_output=True, text=True, timeout=60)


def test_a_step_that_does_not_end_is_noticed():
    run = ran("dog = watchdog.Watchdog(0.2, hung)\ndog.begin()\ntime.sleep(60)")
    assert (run.returncode, run.stdout) == (HUNG, "hung")


def test_one_that_comes_to_an_end_too_late_does_not_go_on():
    run = ran("""
def slow(age):
    time.sleep(1)
    hung(age)
dog = watchdog.Watchdog(0.1, slow)
dog.begin()
time.sleep(0.6)
dog.end(True)
os.write(1, b"went on")
""")
    assert (run.returncode, run.stdout) == (HUNG, "hung")


@pytest.mark.parametrize("timeout", [0, 30])
def test_steps_that_end_in_time_and_long_pauses_are_left_alone(timeout: float):
    run = ran(f"""
dog = watchdog.Watchdog({timeout}, hung)
for _ in range(5):
    dog.begin()
    time.sleep(0.05)
    dog.end(True)
    time.sleep(0.1)
""")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_pauses_longer_than_the_limit_are_left_alone():
    run = ran("""
dog = watchdog.Watchdog(0.6, hung, grace=0.6)
dog.begin()
dog.end(True)
time.sleep(1.6)
assert dog._asleep, "it looks although nothing happens"
os.write(1, b"idle ")
dog.begin()
time.sleep(60)
""")
    assert (run.returncode, run.stdout) == (HUNG, "idle hung")


def test_a_step_that_holds_the_lock_of_python_is_ended_by_the_timer_behind():
    run = ran(f"dog = watchdog.Watchdog(0.2, hung, grace=0.3)\ndog.begin()\ntime.sleep(0.1)\n{FOREVER}")
    assert run.returncode == 1
    assert run.stdout == ""
    assert "Timeout" in run.stderr
    assert "in match" in run.stderr


def test_the_first_steps_may_compile():
    run = ran("""
watchdog.FIRST_STEPS, watchdog.COMPILE_SECONDS = 2, 600
dog = watchdog.Watchdog(0.1, hung, grace=600)
for computed in (True, False, True):
    dog.begin()
    time.sleep(0.5)
    dog.end(computed)
os.write(1, b"compiled ")
dog.begin()
time.sleep(60)
""")
    assert (run.returncode, run.stdout) == (HUNG, "compiled hung")
