"""`paged-engine up`: what is wrong is told before anything starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

FILE = "model: tiny\npools:\n  replicas: {workers: 1}\n"
WITHOUT_RAY = "import sys; sys.modules['ray'] = None; from engine.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return path


def run(*arguments: str, program: tuple[str, ...] = ("-m", "engine")) -> tuple[int, str]:
    done = subprocess.run([sys.executable, *program, *arguments], capture_output=True, text=True, timeout=60)
    assert not done.stdout
    return done.returncode, done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_without_ray_it_says_what_to_install(file: Path) -> None:
    code, told = run("up", str(file), program=("-c", WITHOUT_RAY))
    assert (code, told) == (
        2,
        "paged-engine: error: up: Ray is not installed: pip install 'paged-top[ray]'; "
        "paged-engine serve --prefill N --decode M needs none\n",
    )


def test_everything_else_is_there_without_ray() -> None:
    modules = "engine.cluster.cluster, engine.cluster.cluster_file, engine.server.serve, engine.transfer.parent"
    code = f"import sys; sys.modules['ray'] = None; import {modules}"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_port_that_is_taken_is_told_before_ray_starts(file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, told = run("up", str(file), "--port", str(port))
    assert code == 2
    assert told == (
        f"paged-engine: error: --host, --port: cannot listen on 127.0.0.1 port {port}: Address already in use\n"
    )


def test_a_file_that_is_wrong_is_told_with_its_line(file: Path) -> None:
    file.write_text(FILE + "colour: red\n")
    code, told = run("up", str(file))
    assert code == 2
    assert told.startswith(f"paged-engine: error: {file}:4: colour: is no key here: they are address, ")


def test_an_address_at_which_no_ray_answers_is_told(file: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    code, told = run("up", str(file), "--port", "0", "--address", address)
    assert code == 2
    assert told == (f"paged-engine: error: address {address}: no Ray cluster answers there: Connection refused\n")


def test_an_address_that_is_none_is_told(file: Path) -> None:
    code, told = run("up", str(file), "--port", "0", "--address", "ray://somewhere")
    assert code == 2
    assert told == "paged-engine: error: address must be auto, local or HOST:PORT, got 'ray://somewhere'\n"
