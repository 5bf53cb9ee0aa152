"""Makes the picture of a load test while it runs: `python -m docs.load_run`. Needs tmux and the model."""

from __future__ import annotations

import shlex
import sys
import time

from docs.pictures import FOLDER
from docs.terminals import picture, screen, tmux

WIDTH, HEIGHT = 100, 30
COMMAND = "loadgen replay traces/chat500.jsonl --sessions 40 --speed 20 --slo ttft=500ms,tpot=50ms"
AFTER = 20.0  # seconds of the run


def main() -> None:
    program = shlex.join([sys.executable, "-m", "loadgen.cli", *COMMAND.split()[1:]])
    size = ["-x", str(WIDTH), "-y", str(HEIGHT)]
    try:
        tmux("-f", "/dev/null", "new-session", "-d", "-s", "load", *size, f"cd {FOLDER.parent}; {program}")
        screen("load", "completions", patience=120)
        time.sleep(AFTER)
        lines = screen("load", "completions").splitlines()
    finally:
        tmux("kill-server")
    path = FOLDER / "load-run.svg"
    start = max(number for number, line in enumerate(lines) if "engine at" in line) + 1
    path.write_text(picture("\n".join(lines[start:]), WIDTH, COMMAND), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
