"""Client processes are loadgen's own, wherever it is started."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from golden import GoldenServer, answer

ROOT = Path(__file__).resolve().parents[2]


async def test_files_that_lie_about_are_not_taken_for_modules(tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").write_text("raise RuntimeError('not the one that was meant')")
    header = {"format": "paged-top-chat", "version": 1, "systems": {"main": "Be kind."}}
    turn = {"user": "Hi", "user_tokens": 1, "output_tokens": 2, "seed": 1}
    sessions = [{"session": f"s{i}", "arrival": 0, "system": "main", "turns": [turn]} for i in range(2)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [header, *sessions]))
    async with GoldenServer(lambda _: answer(["a", "b"])) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "loadgen.cli", "replay", "t.jsonl", "--no-probe", "--no-plots"),
            *("--url", server.url, "--workers", "2"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
        )
        _, err = await process.communicate()
    assert process.returncode == 0, err
