"""The command line of `paged-top`: its options, how they are read, and which of them go together."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tui.options import Option, Parser, add_options, config_path, number, one_of, read_config, secret, secret_in, whole
from tui.sources.targets import HttpSettings, Target, distinct, fleet, header, kv_endpoint, server_urls, target, with_kv

_THEMES = ("auto", "dark", "light", "colour-blind", "16", "mono")  # as `tui.terminal` has them
_SOURCES = ("auto", "steps", "metrics")
_PANELS = ("blocks", "batch", "sharing", "ledgers", "requests", "control")  # as `tui.focus` has them

OPTIONS: tuple[Option, ...] = (
    Option("url", "attach to this server, or to several: said again, between commas, or as a range of ports "
           "(host:8000-8009); without it an engine is started, and stopped at the end", server_urls, "URL", play=False,
           many=","),
    Option("fleet", "a file of servers: a line each, URL or range, perhaps a name and kv=tcp://host:port; # comments",
           Path, "FILE", play=False),
    Option("source", "what is read of one --url: steps of a paged-engine, metrics of any server (default: auto)",
           one_of(*_SOURCES), "NAME", "auto", play=False),
    Option("every", "seconds between two looks at metrics (default: 1)", number(0.2, 60.0), "SECONDS", 1.0,
           play=False),
    Option("kv_events", "where the one --url publishes its KV events, tcp://host:5557; after a comma where past ones "
           "can be had again; said again for each rank", kv_endpoint, "ENDPOINT", play=False, many=" "),
    Option("api_key", "sent to servers as a bearer token; the variable or a file hides it from `ps`", secret, "KEY",
           play=False),
    Option("api_key_file", "a file whose first key that is, unless the key is given", Path, "FILE", play=False),
    Option("header", "'Name: value' that is sent to servers with every request; said again for more", header, "HEADER",
           play=False, many="\n"),
    Option("ca_file", "certificates of the authorities that are believed, instead of the usual ones", Path, "FILE",
           play=False),
    Option("insecure", "do not check TLS certificates", default=False, play=False),
    Option("admin_key", "the engine's admin key; the variable or a file hides it from `ps`", secret, "KEY", play=False),
    Option("admin_key_file", "a file whose first key that is, unless the key is given", Path, "FILE", play=False),
    Option("model", "model of the engine that is started (default: smollm2-135m)", str, "NAME", play=False),
    Option("trace", "what a replay plays (default: traces/chat500.jsonl)", Path, "FILE", play=False),
    Option("speed", "how many times as fast as recorded (default: 1)", number(0.1, 1000.0), "X", 1.0, live=False),
    Option("step", "begin at this step, of servers at this look at their metrics", whole(0, 1 << 62), "N", live=False),
    Option("theme", f"{', '.join(_THEMES)} (default: auto, by the terminal)", one_of(*_THEMES), "NAME", "auto"),
    Option("panel", f"begin with one panel over the whole screen: {', '.join(_PANELS)}", one_of(*_PANELS), "NAME"),
    Option("frames", "frames a second at most (default: 10)", number(0.5, 60.0), "N", 10.0),
    Option("web_host", "the address that --web listens on (default: 127.0.0.1)", str, "HOST", "127.0.0.1"),
    Option("web_name", "another name that browsers may call it by: of a proxy in front of it", str, "NAME"),
    Option("web_port", "and its port (default: 8080)", whole(1, 65535), "PORT", 8080),
    Option("config", "a file of options (default: ~/.config/paged-top/config.toml, if it exists)", Path, "FILE"),
    Option("demo", "also replay traces/chat500.jsonl against it", default=False, play=False),
    Option("once", "print one frame as text and exit; COLUMNS and LINES set its size", default=False),
    Option("json", "as --once, but the totals as JSON", default=False),
    Option("texts", "show what prompts and answers say where a server tells it; --no-texts: neither text nor token ids",
           default=True, play=False),
    Option("readonly", "never change the engine", default=False, play=False),
    Option("ascii", "draw with ASCII alone (default: by the terminal)"),
    Option("web", "serve the screen to browsers instead", default=False),
    Option("web_insecure", "let --web listen beyond loopback, though it asks nobody for a key", default=False),
)  # fmt: skip

BY_NAME = {option.name: option for option in OPTIONS}
KEYS = ("api_key", "admin_key")
SECRET = tuple(BY_NAME[name] for name in (*KEYS, *(f"{key}_file" for key in KEYS), "header"))


def make_parser(play: bool = False) -> Parser:
    """The command line of `paged-top`, or of `paged-top play`; every option is an environment variable too."""
    parser = Parser(
        prog="paged-top play" if play else "paged-top",
        description="Show a recording: pause, step and jump through it."
        if play
        else "Watch a paged-engine: every KV block, every step's batch, what sharing saves. "
        "`paged-top play FILE` shows a recording.",
        epilog="Each option is also an environment variable, named in brackets, and a line of the config file "
        '(theme = "light"). Without a terminal it prints once.',
        allow_abbrev=False,
    )
    if play:
        parser.add_argument("file", metavar="FILE", type=Path, help="a recording, .jsonl or .jsonl.gz")
    return parser


def parse(argv: Sequence[str]) -> tuple[Parser, argparse.Namespace]:
    """The options as given, or as the environment or the config file has them. Exits with 2 on bad input."""
    play = list(argv[:1]) == ["play"]
    arguments = list(argv[1:] if play else argv)
    parser = make_parser(play)
    options = tuple(option for option in OPTIONS if (option.play if play else option.live))
    first = Parser(prog=parser.prog, add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path, default=None)
    named = first.parse_known_args(arguments)[0].config or os.environ.get("PAGED_TOP_CONFIG")
    path = Path(named) if named else config_path(os.environ)
    file: dict[str, Any] = {}
    if named or path.exists():
        try:
            file = read_config(path, OPTIONS)
        except argparse.ArgumentTypeError as error:
            parser.error(f"--config: {error}" if named else str(error))
    add_options(parser, options, file)
    chosen = parser.parse_args(arguments)
    if not play:
        _let_go(chosen, arguments, bool(os.environ.get(BY_NAME["url"].variable) or file.get("url")))
    for option in OPTIONS:
        if option not in options:
            setattr(chosen, option.name, option.default)
    chosen.play = chosen.file if play else None
    for key in KEYS:
        key_file = getattr(chosen, f"{key}_file")
        if getattr(chosen, key) is None and key_file is not None:
            with _naming(parser, BY_NAME[f"{key}_file"].flag):
                setattr(chosen, key, secret_in(key_file))
    chosen.targets = _targets(parser, chosen)
    # One server has the admin key anyway, which opens its metrics too; of several each may be anybody's.
    key = chosen.api_key if chosen.api_key is not None or len(chosen.targets) > 1 else chosen.admin_key
    chosen.http = HttpSettings(key, chosen.admin_key, tuple(chosen.header or ()), chosen.ca_file, chosen.insecure)
    return parser, chosen


def _let_go(chosen: argparse.Namespace, arguments: Sequence[str], named: bool) -> None:
    """Servers that the command line names stand for those of the environment and the config file, not beside them;
    nor are KV events that are named there then of these. `named`: there is a server's address there."""
    said = {
        name
        for name in ("url", "fleet", "kv_events")
        if any(word == BY_NAME[name].flag or word.startswith(f"{BY_NAME[name].flag}=") for word in arguments)
    }
    if not said & {"url", "fleet"}:
        return
    others = {name for name in ("url", "fleet") if name not in said and getattr(chosen, name)}
    for name in others:
        setattr(chosen, name, None)
    if "kv_events" not in said and ("fleet" in said or others or named):
        chosen.kv_events = None


@contextmanager
def _naming(parser: Parser, flag: str) -> Iterator[None]:
    """Bad input of an option ends the program, and is told with its flag."""
    try:
        yield
    except argparse.ArgumentTypeError as error:
        parser.error(f"{flag}: {error}")


def _targets(parser: Parser, options: argparse.Namespace) -> tuple[Target, ...]:
    """The servers that are named, each once. With KV events of one, its metrics are what is read."""
    listed: tuple[Target, ...] = ()
    if options.fleet is not None:
        with _naming(parser, "--fleet"):
            listed = fleet(options.fleet)
    with _naming(parser, "--fleet" if listed else "--url"):
        targets = distinct((*map(target, options.url or ()), *listed))
    if options.kv_events:
        if len(targets) != 1:
            parser.error("--kv-events is of one --url; in a --fleet file each line has its own kv=tcp://host:port")
        with _naming(parser, "--kv-events"):
            targets = (with_kv(targets[0], (*targets[0].kv, *options.kv_events)),)
    if options.source == "metrics" and not targets and not (options.demo or options.web):
        parser.error("--source metrics is of a server that runs: name it with --url or --fleet")
    if options.source == "steps" and len(targets) > 1:
        parser.error("--source: steps are of one --url alone: several are read by their metrics")
    if any(one.kv for one in targets):
        if options.source == "steps":
            parser.error("--source: steps have all of KV memory in them; KV events are shown beside metrics")
        options.source = "metrics"
    return targets


def check(parser: Parser, options: argparse.Namespace, terminal: bool) -> None:
    """Options that do not go together."""
    for one, other in (("demo", "once"), ("demo", "json"), ("web", "once"), ("web", "json"), ("web", "demo")):
        if getattr(options, one) and getattr(options, other):
            parser.error(f"--{one} and --{other} exclude each other")
    if options.targets and options.model:
        parser.error(f"--model is for an engine that is started; {_named_by(options)} names one that runs")
    if options.demo and len(options.targets) > 1:
        parser.error(f"--demo is of one engine, and {_named_by(options)} names {len(options.targets)}")
    if options.demo and options.source == "metrics":
        parser.error("--demo is of an engine whose steps are read: not with --source metrics or KV events")
    _check_tls(parser, options)
    if options.demo and options.readonly and not terminal:
        parser.error("--demo without a terminal switches modes, which --readonly forbids")
    if options.web:
        _check_web(parser, options)


def _named_by(options: argparse.Namespace) -> str:
    return "--fleet" if options.fleet is not None else "--url"


def _check_tls(parser: Parser, options: argparse.Namespace) -> None:
    """Authorities that can be read, or the warning that none is asked."""
    if options.insecure and options.ca_file is not None:
        parser.error("--insecure checks no certificates, and --ca-file says by whom they are: one of them")
    if options.ca_file is not None:
        import ssl

        try:
            ssl.create_default_context(cafile=options.ca_file)
        except ssl.SSLError:
            parser.error(f"--ca-file: {options.ca_file}: has no certificate that can be read (PEM)")
        except (OSError, ValueError) as error:
            parser.error(f"--ca-file: {options.ca_file}: {getattr(error, 'strerror', None) or error}")
    if options.http.unchecked(one.url for one in options.targets):
        print(
            "paged-top: warning: --insecure: certificates are not checked: whoever is in between can read the keys "
            "and answer instead",
            file=sys.stderr,
        )


def _check_web(parser: Parser, options: argparse.Namespace) -> None:
    """Beyond loopback whoever comes is at the keys: that must be meant."""
    from tui.hosts import is_beyond_loopback

    try:
        if not is_beyond_loopback(options.web_host):
            return
    except (OSError, UnicodeError) as error:
        parser.error(f"--web-host: {options.web_host}: {str(getattr(error, 'strerror', None) or error).lower()}")
    whoever = f"--web-host: whoever reaches {options.web_host or 'this machine'}"
    if not options.web_insecure:
        parser.error(
            f"{whoever} would be at the keys of this screen, for --web asks for no password; leave it on 127.0.0.1 "
            "with a proxy that does in front (see docs/security.md), or say --web-insecure"
        )
    can = "see this screen and record to files here"
    if not options.readonly and not options.play:
        can = "steer the engine (unless --readonly), see this screen and record to files here"
    print(f"paged-top: warning: --web-insecure: {whoever} can {can}", file=sys.stderr)
