"""`--web`: the screen in a browser, through textual-serve: each page is a paged-top of its own on this machine."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

_PAGE = "app_index.html"
_FROM_THE_NET = re.compile(r'<link[^>]*href="https?://[^>]*>')  # a font; what is served here asks nobody else


class NoWeb(Exception):
    """textual-serve is not installed."""


def serve(arguments: Sequence[str], host: str, port: int) -> None:
    """Serve until interrupted. `arguments` are those of the paged-top that each page starts. Raises NoWeb, OSError."""
    if find_spec("textual_serve") is None:
        raise NoWeb("--web needs the package textual-serve: pip install textual-serve")
    import textual_serve.server

    page = Path(textual_serve.server.__file__).parent / "templates" / _PAGE
    command = shlex.join([sys.executable, "-m", "tui.cli", *arguments])
    with tempfile.TemporaryDirectory(prefix="paged-top-web-") as folder:
        (Path(folder) / _PAGE).write_text(_FROM_THE_NET.sub("", page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"paged-top: http://{host}:{port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        textual_serve.server.Server(command, host, port, title="paged-top", templates_path=folder).serve()
