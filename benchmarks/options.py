"""The command line of `benchmarks.compare`, checked before anything is started."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

from benchmarks.messages import Settings
from benchmarks.works import ABOUT, TRACE, WORKS
from engine.cli import between, number, size
from engine.config import EngineConfig
from engine.protocol import MAX_BATCHED_TOKENS, Quantize

OWN = ("offline", "floor", "static", "http", "generate", "generate_batch")
# Where it is worth the time: static batching is compared where lengths differ, and the slowest only on short works.
_BY_WORK = {
    "burst": ("offline", "floor", "http", "generate", "generate_batch"),
    "single": ("offline", "floor", "http", "generate", "generate_batch"),
    "ragged": ("offline", "floor", "static", "http", "generate"),
    "shared-prefix": ("offline", "floor", "http", "generate"),
}
PLOTS = (".svg", ".txt")


@dataclass(frozen=True, slots=True)
class Options:
    """What to run. `only` empty: whoever is worth the time for each work."""

    works: tuple[str, ...]
    settings: Settings
    repeats: int
    stream: bool = True
    scale: float = 1.0
    seed: int = 0
    only: tuple[str, ...] = ()
    servers: dict[str, str] = field(default_factory=dict)  # name to URL
    profile: bool = False
    json: Path | None = None
    plot: Path | None = None

    def participants(self, work: str) -> tuple[str, ...]:
        """Who does a work, in the order in which they take turns."""
        if self.only:
            return tuple(name for name in (*OWN, *self.servers) if name in self.only)
        return (*_BY_WORK[work], *self.servers)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from a command line; what is wrong ends the program with a line that says what is allowed."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    servers: dict[str, str] = {}
    for name, url in arguments.server:
        if name in OWN or name in servers:
            parser.error(f"--server: the name {name!r} is taken; choose another")
        servers[name] = url
    works = _chosen(parser, "--work", arguments.work, WORKS)
    if "ragged" in works and not TRACE.is_file():
        parser.error(f"--work: ragged takes its lengths from {TRACE}, which is not there; run it in the source tree")
    only = () if arguments.only is None else _chosen(parser, "--only", arguments.only, (*OWN, *servers))
    if "floor" in only and "offline" not in only:
        parser.error("--only: floor measures the steps that offline ran, so it needs offline too")
    check_files(parser, arguments)
    settings = Settings(
        arguments.model,
        arguments.dtype,
        arguments.kv_memory,
        arguments.max_num_batched_tokens,
        arguments.quantize,
    )
    return Options(
        works,
        settings,
        arguments.repeats,
        arguments.stream,
        arguments.scale,
        int(time.time()) if arguments.seed is None else arguments.seed,
        only,
        servers,
        arguments.profile,
        arguments.json,
        arguments.plot,
    )


def make_parser() -> argparse.ArgumentParser:
    about = "\n".join(f"  {name:<14}{text}" for name, text in ABOUT.items())
    parser = argparse.ArgumentParser(
        prog="benchmarks.compare",
        description="The same work, in one run, on this engine, its peers and the floor of bare matrix products.",
        epilog=f"works:\n{about}\n\nparticipants: {', '.join(OWN)}, and each --server\n"
        "exit status: 0 if all took part to the end, else 1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, defaults = parser.add_argument, EngineConfig()
    add("--work", default=",".join(WORKS), metavar="A,B", help="works to do, by name (default: all)")
    add("--only", metavar="A,B", help="who takes part (default: who is worth the time for each work)")
    add(
        "--server",
        type=_server,
        action="append",
        default=[],
        metavar="NAME=URL",
        help="an OpenAI-compatible server that runs already; vllm or llama in its name says what it is",
    )
    add("--repeats", type=between(1, 1000), default=3, metavar="N", help="rounds of each work (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every run and figure here")
    add("--plot", type=Path, metavar="FILE", help=f"write the plot here: {' or '.join(PLOTS)}")
    add("--profile", action="store_true", help="show where the time of the engine's steps goes, beside the floor's")
    add(
        "--stream",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="stream answers over HTTP, as chat clients do (default: yes); without it no times per token",
    )
    add("--model", default=defaults.model, help="as paged-engine takes it (default: %(default)s)")
    add("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto", help="default: %(default)s")
    add(
        "--quantize",
        choices=get_args(Quantize),
        default=defaults.quantize,
        help="of the engine's matrices; its peers and the floor keep theirs (default: %(default)s)",
    )
    add("--kv-memory", type=size, default=defaults.kv_memory, metavar="SIZE", help="of the engine (default: 512MiB)")
    add(
        "--max-num-batched-tokens",
        type=between(1, MAX_BATCHED_TOKENS),
        default=defaults.control.max_num_batched_tokens,
        metavar="N",
        help="tokens in a step of the engine (default: %(default)s)",
    )
    add(
        "--seed",
        type=between(0),
        metavar="N",
        help="of the prompts (default: the time, so that no server's cache knows them from an earlier run)",
    )
    add(
        "--scale",
        type=number(0.001, 1),
        default=1.0,
        metavar="X",
        help="make requests, prompts and answers smaller by this factor, for a trial: aims are then not judged",
    )
    return parser


def check_files(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End the program if `--json` or `--plot` names a file that could not be written at the end."""
    if arguments.plot is not None and arguments.plot.suffix not in PLOTS:
        parser.error(f"--plot: must end with {' or '.join(PLOTS)}, got {str(arguments.plot)!r}")
    for option in ("json", "plot"):
        check_file(parser, f"--{option}", getattr(arguments, option))


def check_file(parser: argparse.ArgumentParser, option: str, path: Path | None) -> None:
    """End the program, before anything is measured, if `path` could not be written at the end."""
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        parser.error(f"{option}: there is no folder {path.absolute().parent}")
    if path.is_dir():
        parser.error(f"{option}: must be a file, and {path} is a folder")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        parser.error(f"{option}: {path} cannot be written")


def _chosen(parser: argparse.ArgumentParser, option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in allowed:
            parser.error(f"{option}: must be of {', '.join(allowed)}, got {name!r}")
    return tuple(dict.fromkeys(names))


def _server(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    parts = urlsplit(url)
    if not re.fullmatch(r"[\w.-]+", name) or parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"must be NAME=URL, as vllm=http://127.0.0.1:8001, got {text!r}")
    return name, url.rstrip("/").removesuffix("/v1")
