"""The program in a pseudo-terminal of its own: it draws, takes keys, waits for an engine, and leaves cleanly."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading

import pytest

MAIN = "import sys; from tui.cli import main; sys.exit(main())"
OTHER_TRACE = "import pathlib, sys, tui.replay; tui.replay.find_trace = lambda: pathlib.Path('{trace}'); " + MAIN

EARLY = (
    "import os, sys, tui.cli as cli; listen = cli._end_on_signals; "
    "cli._end_on_signals = lambda app: (os.kill(os.getpid(), {sign}), listen(app)); sys.exit(cli.main())"
)
STUCK = (  # as one that waits for its turn to write to a terminal that is gone
    "import pathlib, queue, sys, tui.app, tui.attached, tui.cli as cli; cli.GONE_SECONDS = 1; full = queue.Queue(1); "
    "full.put(0); tui.app.PagedTop.exit = lambda *_: full.put(1); close = tui.attached.One.close; "
    "tui.attached.One.close = lambda one: (pathlib.Path('{closed}').touch(), close(one))[1]; sys.exit(cli.main())"
)


class Terminal:
    """One run of paged-top in a terminal of 80 x 24."""

    def __init__(self, *arguments, main=MAIN, **environment):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PAGED_TOP_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", main, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**clean, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(slave)
        self.seen = b""
        self.news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            with self.news:
                self.seen += data
                self.news.notify_all()

    def wait_for(self, words):
        with self.news:
            assert self.news.wait_for(lambda: words.encode() in self.seen, 40), self.seen[-3000:]

    def end(self):
        code = self.process.wait(30)
        os.close(self.master)
        return code


def test_it_waits_for_an_engine_visibly_and_quits():
    terminal = Terminal("--url", "http://127.0.0.1:1")
    terminal.wait_for("connecting")
    terminal.wait_for("nothing answers there")
    os.write(terminal.master, b"q")
    assert terminal.end() == 0
    assert b"Traceback" not in terminal.seen


def test_it_ends_when_its_terminal_is_gone_though_no_signal_tells_it():
    terminal = Terminal("--url", "http://127.0.0.1:1")
    terminal.wait_for("connecting")
    os.close(terminal.master)  # it is in a session of its own, and this terminal does not control it
    assert terminal.process.wait(30) == 128 + signal.SIGHUP


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_stops_it_and_the_engine_it_started(sign):
    terminal = Terminal("--model", "tiny")
    terminal.wait_for("live")
    children = subprocess.run(
        ["ps", "--ppid", str(terminal.process.pid), "-o", "pid="], capture_output=True, text=True, check=False
    ).stdout.split()
    assert children
    terminal.process.send_signal(sign)
    assert terminal.end() == 128 + sign
    assert not any(os.path.exists(f"/proc/{pid}") for pid in children)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_comes_before_there_is_a_screen_is_not_lost(sign):
    terminal = Terminal("--url", "http://127.0.0.1:1", main=EARLY.format(sign=int(sign)))
    assert terminal.end() == 128 + sign
    assert b"Traceback" not in terminal.seen


def test_what_it_is_attached_to_is_closed_even_where_its_screen_hangs(tmp_path):
    closed = tmp_path / "closed"
    terminal = Terminal("--url", "http://127.0.0.1:1", "--source", "steps", main=STUCK.format(closed=closed))
    terminal.wait_for("connecting")
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.end() == 128 + signal.SIGHUP
    assert closed.exists()


def test_an_engine_that_cannot_start_is_on_the_screen_and_in_the_exit_code():
    terminal = Terminal("--model", "/no/such/folder")
    terminal.wait_for("the engine ended")
    os.write(terminal.master, b"q")
    assert terminal.end() == 1
    assert b"Traceback" not in terminal.seen


def test_a_replay_that_fails_is_on_the_screen_and_in_the_exit_code(tmp_path):
    trace, logs = tmp_path / "t.jsonl", tmp_path / "logs"
    trace.write_text('{"format": "something else"}\n')
    logs.mkdir()
    terminal = Terminal("--demo", "--model", "tiny", main=OTHER_TRACE.format(trace=trace), TMPDIR=str(logs))
    terminal.wait_for("replay: exit code 2")
    os.write(terminal.master, b"q")
    assert terminal.end() == 1
    (log,) = logs.iterdir()
    assert f"(log: {log})" in terminal.seen.decode()
    assert b"Traceback" not in terminal.seen
