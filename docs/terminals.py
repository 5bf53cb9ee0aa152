"""Makes pictures of paged-top as terminals of different abilities show it: `python -m docs.terminals`. Needs tmux."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from io import StringIO

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from docs.pictures import DEMO, FOLDER, steps_of, without_net

TERMINALS = (("xterm-256color", 160, 48), ("xterm", 80, 24), ("linux", 80, 24))  # TERM, columns, rows
AFTER = 12.0  # seconds since the switch
_WHITE = (255, 255, 255)
_XTERM = TerminalTheme(  # its sixteen colours
    (0, 0, 0),
    (229, 229, 229),
    [(0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229)],
    [(127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255), (255, 0, 255), (0, 255, 255), _WHITE],
)
_SOCKET = f"paged-top-docs-{time.time_ns()}"


def main() -> None:
    step = steps_of(DEMO).after_switch(AFTER)
    program = shlex.join([sys.executable, "-m", "tui.cli", "play", str(DEMO), "--step", str(step)])
    try:
        for term, width, height in TERMINALS:
            clean = f"env -u COLORTERM -u NO_COLOR TERM={term}"
            size = ["-x", str(width), "-y", str(height)]
            tmux("-f", "/dev/null", "new-session", "-d", "-s", term, *size, f"cd {FOLDER.parent}; {clean} {program}")
            path = FOLDER / f"terminal-{term}.svg"
            path.write_text(picture(screen(term, f"step {step}"), width, f"TERM={term}"), encoding="utf-8")
            print(path)
    finally:
        tmux("kill-server")


def screen(session: str, words: str, patience: float = 60.0) -> str:
    """What the terminal shows, once it has shown some words: text with its escape sequences."""
    until = time.monotonic() + patience
    while words not in tmux("capture-pane", "-p", "-t", f"{session}:"):
        if time.monotonic() > until:
            raise SystemExit(f"{session}: no {words!r} within {patience:.0f} s")
        time.sleep(0.2)
    time.sleep(1)  # the rest of the frame
    return tmux("capture-pane", "-e", "-p", "-t", f"{session}:")


def picture(text: str, width: int, title: str) -> str:
    console = Console(record=True, width=width, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text.rstrip("\n")), soft_wrap=True)
    return without_net(console.export_svg(title=title, theme=_XTERM))


def tmux(*arguments: str) -> str:
    return subprocess.run(["tmux", "-L", _SOCKET, *arguments], capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    main()
