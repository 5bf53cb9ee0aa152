"""Children never outlive paged-top, and what they say is read."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from tui.child import Child, command

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_lines_of_both_streams_and_the_output_apart():
    code = "import sys; print('one\\rtwo'); print('three', file=sys.stderr); sys.stdout.write('four')"
    seen = []
    child = await Child.start([sys.executable, "-c", code], seen.append)
    assert await child.wait() == 0
    assert [line for line in child.output if line] == ["one", "two", "four"]
    assert sorted(line for line in seen if line) == ["four", "one", "three", "two"]


async def test_one_that_is_steered_reads_what_is_written():
    child = await Child.start([sys.executable, "-c", "print(input())"], steered=True)
    child.write("speed 3\n")
    assert await child.wait() == 0
    assert next(iter(child.output)) == "speed 3"
    child.write("too late\n")


async def test_one_that_does_not_end_is_made_to():
    lines = []
    child = await Child.start([sys.executable, "-c", STUBBORN], lines.append)
    while not lines:
        await asyncio.sleep(0.01)
    assert await child.stop(timeout=0.3) == -signal.SIGKILL
    assert await child.stop() == -signal.SIGKILL


async def test_its_own_children_go_with_it():
    code = (
        "import subprocess, sys, time\n"
        f"inner = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=sys.stdout)\n"
        "print(inner.pid, flush=True)\ntime.sleep(60)"
    )
    child = await Child.start([sys.executable, "-c", code])
    while len(child.output) < 2:
        await asyncio.sleep(0.01)
    pid = next(int(line) for line in child.output if line.isdigit())
    await child.stop(timeout=0.5)
    while alive(pid):  # it was killed; the kernel may still be at it
        await asyncio.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells children of a parent's death on Linux")
def test_a_killed_parent_takes_its_child_along():
    code = (
        "import asyncio, sys\nfrom tui.child import Child\n"
        "async def main():\n"
        "    child = await Child.start([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "    print(child.process.pid, flush=True)\n    await asyncio.sleep(60)\nasyncio.run(main())"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while alive(pid):
        time.sleep(0.01)


def test_commands_are_of_this_installation():
    program = command("no-such-script", "tui.cli")
    assert program[0] == sys.executable
    result = subprocess.run([*program, "--help"], capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert "paged-top" in result.stdout
