"""`loadgen replay`: play a trace against a server and report. Its options are those of every command that plays one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.options import (
    ENGINE_MODEL,
    FORMATS,
    UNITS,
    Commands,
    OptionAdder,
    engine_arguments,
    key_options,
    metrics_url,
    positive_float,
    positive_int,
    server_address,
    unicode_text,
    whole_number,
    yes_or_no,
)

if TYPE_CHECKING:
    from loadgen.settings import Settings

EPILOG = "Every option is also an environment variable, named in brackets. Ctrl-C stops and reports so far."
MODES = ("static", "continuous")
ALLOCATIONS = ("paged", "reserved")
ARRIVALS = "recorded, poisson:R, gamma:R,burstiness=B, constant:R, ramp:A..B,over=10s, steps:R,R,each=10s, inf, users:N"
RULES = "requests=N, time=60s, errors=5%%, errors=N or saturation"


def run_options(parser: argparse.ArgumentParser) -> None:
    """What a run is made of: the trace, the server, when requests are sent, what they ask. For `settings_of`."""
    parser.add_argument("file", metavar="FILE", help="the trace (formats: see traces/README.md)")

    add = OptionAdder(parser.add_argument_group("the trace"))
    add("--format", str, None, "the trace's format (default: told by its content)", metavar="NAME", choices=FORMATS)
    add("--skip-bad", yes_or_no, False, "leave out lines that do not fit, and count them")
    add("--block-size", positive_int, None, "tokens that a hash id names (default: the format's)", metavar="N")
    add("--time-unit", str, None, "of the trace's times (default: the format's)", choices=UNITS)
    add("--sessions", positive_int, None, "only the first N sessions", metavar="N")
    add("--length-scale", positive_float, None, "multiply recorded lengths by X, blocks of hash ids too", metavar="X")
    add("--too-long", str, "error", "requests longer than the server's context", choices=("error", "skip", "cut"))

    add = OptionAdder(parser.add_argument_group("the server"))
    add("--url", server_address, None, "an OpenAI-compatible server; without it an engine is started", metavar="URL")
    add("--model", unicode_text, None, f"model name (default: the server's first; own engine: {ENGINE_MODEL})", "NAME")
    add("--engine-args", engine_arguments, (), "more arguments for the engine that is started", metavar='"..."')
    elsewhere = (
        "where the server's metrics are, if not at its own address; asked with the same keys, and written down as given"
    )
    add("--metrics-url", metrics_url, None, elsewhere, metavar="URL")
    key_options(add)
    add("--no-probe", yes_or_no, False, "send no small request before the run to find out what the server can do")

    add = OptionAdder(parser.add_argument_group("what is asked"))
    add("--endpoint", str, None, "where to ask (default: by the trace)", choices=("chat", "completions"))
    add("--tokenizer", unicode_text, None, "tokenizer.json or its folder (default: the server's own)", metavar="PATH")
    add("--no-ignore-eos", yes_or_no, False, "let answers end before their recorded length")
    add("--no-stream", yes_or_no, False, "ask for whole answers: only E2E is measured")
    add("--extra-body", _json_object, {}, "more fields of each request's body, as JSON", metavar="JSON")

    add = OptionAdder(parser.add_argument_group("when"))
    add("--speed", positive_float, 1.0, "divide arrival and think times by X (default: 1)", metavar="X")
    add("--arrivals", _arrivals, None, f"when sessions come, R a second: {ARRIVALS} (default: recorded)", "SPEC")
    add("--rate", positive_float, None, "R sessions/s: --arrivals poisson:R; --speed divides think times only", "R")
    add("--users", positive_int, None, "the same as --arrivals users:N, a closed loop", metavar="N")
    add("--concurrency", positive_int, None, "at most N requests in flight (default: no limit)", metavar="N")
    add("--seed", whole_number, 0, "seed of arrivals and made-up text (default: 0)", metavar="N")
    until = add.parser.add_argument  # may be given again, so it is no environment variable
    until("--until", type=_rule, action="append", default=[], metavar="RULE", help=f"end early, at {RULES}; repeatable")

    add = OptionAdder(parser.add_argument_group("the client"))
    add("--workers", positive_int, 1, "client processes (default: 1)", metavar="N")
    add("--timeout", positive_float, 3600.0, "seconds from sending to the end of an answer (default: 3600)", "S")
    add("--retries", whole_number, 0, "tries after a failed connection, 429 or 503 (default: 0)", metavar="N")
    add("--retry-refused", whole_number, 0, "tries after 429 or 503 alone, when Retry-After says (default: 0)", "N")

    add = OptionAdder(parser.add_argument_group("what counts"))
    add("--slo", _slo, None, "limits that a request must meet: ttft=500ms,tpot=50ms,e2e=10s", metavar="LIMITS")
    split = "tell prompts of up to N tokens and longer ones apart (default: as the trace's recipe says)"
    add("--split-prompt-tokens", positive_int, None, split, metavar="N")
    add("--warmup", _span, None, "leave the first requests out of the figures: 10s, or 50 (requests)", metavar="SPAN")
    add("--cooldown", _span, None, "leave the last ones out", metavar="SPAN")


def settings_of(arguments: argparse.Namespace, control: dict[str, str | int | float | bool] | None = None) -> Settings:
    """The settings that the options of `run_options` ask for. Raises `argparse.ArgumentTypeError`."""
    from loadgen.settings import Settings
    from loadgen.stop_rules import stop_rules_of

    named = {
        "--arrivals": arguments.arrivals,
        "--rate": None if arguments.rate is None else f"poisson:{arguments.rate:.15g}",
        "--users": None if arguments.users is None else f"users:{arguments.users}",
    }
    given = {flag: spec for flag, spec in named.items() if spec is not None}
    if len(given) > 1:
        raise argparse.ArgumentTypeError(f"{' and '.join(given)}: give one of them; each says when sessions arrive")
    own = arguments.url is None
    if own and arguments.metrics_url is not None:
        raise argparse.ArgumentTypeError("--metrics-url: only beside --url; an engine that is started tells its own")
    settings = Settings(
        file=arguments.file,
        format=arguments.format,
        skip_bad=arguments.skip_bad,
        block_size=arguments.block_size,
        time_unit=arguments.time_unit,
        sessions=arguments.sessions,
        url=None if arguments.url is None else str(arguments.url),
        metrics_url=arguments.metrics_url,
        headers=names_of(arguments),
        ca_file=arguments.ca_file,
        insecure=arguments.insecure,
        engine_args=("--model", arguments.model or ENGINE_MODEL, *arguments.engine_args) if own else (),
        model=None if own else arguments.model,
        arrivals=next(iter(given.values()), "recorded"),
        speed=arguments.speed,
        concurrency=arguments.concurrency,
        seed=arguments.seed,
        workers=arguments.workers,
        timeout=arguments.timeout,
        retries=arguments.retries,
        retry_refused=arguments.retry_refused,
        control=control or {},
        endpoint=arguments.endpoint,
        stream=not arguments.no_stream,
        probe=not arguments.no_probe,
        ignore_eos=not arguments.no_ignore_eos,
        extra_body=arguments.extra_body,
        tokenizer=arguments.tokenizer,
        length_scale=arguments.length_scale,
        too_long=arguments.too_long,
        warmup=arguments.warmup,
        cooldown=arguments.cooldown,
        slo=arguments.slo,
        split_prompt_tokens=arguments.split_prompt_tokens,
        until=tuple(arguments.until),
    )
    try:
        stop_rules_of(settings)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"--until {error}") from None
    return settings


def names_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Of the headers that go with every request; their values are told nowhere."""
    return tuple(sorted({name for name, _ in (*arguments.header_file, *arguments.header)}, key=str.lower))


def _json_object(text: str) -> dict[str, object]:
    import msgspec

    from loadgen.asking import check_extra_body

    try:
        value = msgspec.json.decode(unicode_text(text))
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    try:
        check_extra_body(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def _checked(text: str, check: Callable[[str], object]) -> str:
    """The text itself, once `check` has read it."""
    try:
        check(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _arrivals(text: str) -> str:
    from loadgen.arrivals import parse_arrivals

    return _checked(text, lambda spec: parse_arrivals(spec, 0))


def _slo(text: str) -> str:
    from loadgen.metrics.slo import parse_slo

    return _checked(text, parse_slo)


def _span(text: str) -> str:
    from loadgen.metrics.window import parse_span

    return _checked(text, parse_span)


def _rule(text: str) -> str:
    from loadgen.stop_rules import parse_rule

    return _checked(text, parse_rule)


def add_parser(commands: Commands) -> None:
    """Its options."""
    parser = commands.add_parser("replay", help="play a trace and report", epilog=EPILOG, allow_abbrev=False)
    parser.set_defaults(run=run)
    run_options(parser)
    add = OptionAdder(parser.add_argument_group("this command"))
    add("--mode", str, None, "set the engine's batching first; it stays so", choices=MODES)
    add("--alloc", str, None, "set the engine's allocation first; it stays so", choices=ALLOCATIONS)
    add("--repeat", positive_int, 1, "play it N times, each with a fresh engine if it is loadgen's own", metavar="N")
    add("--out", Path, None, "keep every request's times in FILE, for report, diff and resume", metavar="FILE")
    add("--json", Path, None, "write the figures to FILE", metavar="FILE")
    add("--no-plots", yes_or_no, False, "tables only")
    add("--steer", yes_or_no, False, "obey lines on standard input while it runs: 'speed X' and 'stop'")


def run(arguments: argparse.Namespace) -> int:
    """Check the input, then run."""
    from loadgen.command import execute
    from loadgen.replay import replay

    settings = settings_of(arguments, control_of(arguments))
    return execute(lambda interrupt: replay(settings, arguments, interrupt))


def control_of(arguments: argparse.Namespace) -> dict[str, str | int | float | bool]:
    """What --mode and --alloc ask of the engine."""
    named = {"batching": arguments.mode, "allocation": arguments.alloc}
    return {name: value for name, value in named.items() if value is not None}
