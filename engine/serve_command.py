"""`paged-engine serve`: its options, and from them the engine's configuration and the server's settings."""

from __future__ import annotations

import argparse
import logging
import socket
from typing import Any, NamedTuple, get_args

import msgspec

from engine import log
from engine.cli import (
    LEAST_MODEL_LEN,
    MOST,
    Adder,
    FileName,
    add_control,
    add_model,
    between,
    chosen_control,
    file_name,
    number,
    size,
    size_or_none,
    unicode_text,
    unusable,
)
from engine.cluster.options import add_cluster, check_alone, check_cluster, chosen_cluster, fault, host_memory
from engine.cluster.protocol import ClusterControl
from engine.config import DEFAULT_KV_MEMORY, EngineConfig
from engine.keys import KeyDigest, key, read_keys
from engine.kv_endpoint import DEFAULT_TOPIC, KvPublishing, is_open, tcp_endpoint, topic
from engine.protocol import Quantize
from engine.sampling_params import MAX_N, MAX_STOPS, MAX_TOP_LOGPROBS
from engine.server.origins import allowed_host, allowed_origin, is_loopback
from engine.server.settings import Access, Limits, LogFormat, Logging, LogLevel, Recovery, ServeSettings

MOST_SECONDS = 7 * 86_400.0
_DTYPE = "of weights and KV (default: auto, bfloat16 where the hardware multiplies it, else float32)"


def add_command(commands: Any) -> None:
    serve = commands.add_parser("serve", help="serve a model over an OpenAI-compatible API")
    serve.set_defaults(command="serve", run=_serve)
    add_model(serve)
    _add_engine(Adder(serve))
    add_cluster(Adder(serve, serve.add_argument_group("several engines behind one endpoint: see docs/cluster.md")))
    add_limits(Adder(serve, serve.add_argument_group("limits: what is refused, and what is ended")))
    add_access(Adder(serve, serve.add_argument_group("access: see docs/security.md")))
    recovery = serve.add_argument_group("faults, logs and ending")
    add_recovery(Adder(serve, recovery))
    _add_faults(Adder(serve, recovery))


def _add_engine(add: Adder) -> None:
    add(
        "--served-model-name",
        nargs="+",
        type=unicode_text,
        metavar="NAME",
        help="names clients use for it (default: --model)",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=between(0, 65535), default=8000, help="0 picks a free one (default: %(default)s)")
    add("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto", help=_DTYPE)
    add(
        "--quantize",
        choices=get_args(Quantize),
        default="none",
        help="matrices in 8 bits, or in 4 as a GGUF file has them, on a CPU (default: %(default)s)",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s")
    add("--block-size", type=between(1, 1024), default=16, metavar="N", help="slots per KV block (default: 16)")
    add("--kv-memory", type=size, default=DEFAULT_KV_MEMORY, metavar="SIZE", help="for KV blocks (default: 512MiB)")
    add(
        "--max-model-len",
        type=between(LEAST_MODEL_LEN),
        metavar="N",
        help="tokens per request, prompt and answer together (default: what the model and the KV blocks take)",
    )
    add_control(add)
    add(
        "--swap-space",
        type=size_or_none,
        default=0,
        metavar="SIZE",
        help="host memory for the KV of preempted requests (default: 0, none)",
    )
    add(
        "--kv-events",
        type=tcp_endpoint,
        metavar="ENDPOINT",
        help="publish what changes in the prefix cache as vLLM does, over ZeroMQ, as at tcp://127.0.0.1:5557",
    )
    add(
        "--kv-events-replay",
        type=tcp_endpoint,
        metavar="ENDPOINT",
        help="where subscribers who missed some ask for them again, as tcp://127.0.0.1:5558 (default: nowhere)",
    )
    add(
        "--kv-events-topic",
        type=topic,
        default=DEFAULT_TOPIC,
        metavar="TOPIC",
        help="of the messages (default: %(default)s)",
    )
    add(
        "--kv-events-open",
        action="store_true",
        help="publish KV events beyond loopback: whoever reaches them reads everybody's prompts and answers in tokens",
    )
    add("--seed", type=between(0), default=0, metavar="N", help="of tiny's random weights (default: 0)")


def add_limits(add: Adder) -> None:
    limits = Limits()

    def count(option: str, least: int, default: int, what: str, most: int = MOST) -> None:
        add(option, type=between(least, most), default=default, metavar="N", help=f"{what} (default: {default})")

    def seconds(option: str, default: float, what: str) -> None:
        reader = number(0, MOST_SECONDS, "a number of seconds")
        add(option, type=reader, default=default, metavar="SECONDS", help=f"{what}; 0: no limit (default: {default:g})")

    add("--max-body", type=size, default=limits.max_body, metavar="SIZE", help="of one request (default: 32MiB)")
    add(
        "--max-body-memory",
        type=size,
        default=limits.max_body_memory,
        metavar="SIZE",
        help="of all bodies that are being read or worked on (default: 256MiB)",
    )
    add("--max-prompt-tokens", type=between(1), metavar="N", help="of one prompt (default: what the model takes)")
    count("--max-n", 1, limits.max_n, "choices of one prompt: n, best_of, beam_width", MAX_N)
    count("--max-stop-strings", 0, limits.max_stop_strings, "of one request", MAX_STOPS)
    count("--max-logprobs", 0, limits.max_logprobs, "alternatives told beside a token", MAX_TOP_LOGPROBS)
    count("--max-queue", 1, limits.max_queue, "requests that have no token yet; more are answered 429")
    count("--max-queue-per-client", 1, limits.max_queue_per_client, "the same of one key, or one address")
    count("--max-connections", 1, limits.max_connections, "at a time; idle ones make room first")
    count("--max-step-readers", 1, limits.max_step_readers, "of /engine/steps at a time")
    seconds("--header-timeout", limits.header_timeout, "for the headers of a request")
    seconds("--body-timeout", limits.body_timeout, "for its body")
    seconds("--keep-alive-timeout", limits.keep_alive_timeout, "for a connection without a request")
    seconds("--write-timeout", limits.write_timeout, "for a client that reads nothing of its answer")
    seconds("--request-timeout", limits.request_timeout, "for a request, from its arrival to its end")


def add_access(add: Adder) -> None:
    for who, what in (("api", "/v1 and the other routes of clients"), ("admin", "/engine/* too")):
        add(
            f"--{who}-key",
            nargs="+",
            type=key,
            metavar="KEY",
            help=f"that clients must show for {what}; others on this machine can read it here: a file is better",
        )
        add(f"--{who}-key-file", type=file_name, metavar="FILE", help="of such keys, one a line")
    add(
        "--allowed-host",
        nargs="+",
        type=allowed_host,
        metavar="NAME",
        help="names of this server that browsers may use besides localhost, while it listens on loopback",
    )
    add(
        "--allowed-origin",
        nargs="+",
        type=allowed_origin,
        metavar="ORIGIN",
        help="web pages that may ask, as https://chat.example",
    )
    add("--insecure", action="store_true", help="listen beyond loopback though no API key is set")
    add("--no-text", action="store_true", help="tell nobody the text of requests and blocks")


def add_recovery(add: Adder) -> None:
    recovery, logging = Recovery(), Logging()
    add(
        "--drain-timeout",
        type=number(0, MOST_SECONDS, "a number of seconds"),
        default=recovery.drain_timeout,
        metavar="SECONDS",
        help=f"that requests have to end when asked to stop (default: {recovery.drain_timeout:g})",
    )
    add(
        "--max-restarts",
        type=between(0),
        default=recovery.max_restarts,
        metavar="N",
        help="of an engine that died, in a row without serving; 0: end with it (default: %(default)s)",
    )
    add("--log-format", choices=get_args(LogFormat), default=logging.format, help="default: %(default)s")
    add("--log-level", choices=get_args(LogLevel), default=logging.level, help="default: %(default)s")
    add("--log-requests", action="store_true", help="a line for each request that ended")


def _add_faults(add: Adder) -> None:
    config = EngineConfig()
    add(
        "--step-timeout",
        type=number(0, MOST_SECONDS, "a number of seconds"),
        default=config.step_timeout,
        metavar="SECONDS",
        help=f"after which a step that hangs ends the engine; 0: never (default: {config.step_timeout:g})",
    )
    add("--check-invariants", action="store_true", help="check the block pool after every step (slow)")
    add(
        "--check-every",
        type=between(0),
        default=config.check_every,
        metavar="N",
        help="steps between two quick checks of it; 0: never (default: %(default)s)",
    )
    add(
        "--crash-dir",
        type=unicode_text,
        metavar="FOLDER",
        help="for the last records before a fault (default: in the cache folder)",
    )
    add(
        "--fault",
        nargs="+",
        type=fault,
        metavar="FAULT",
        help="for tests: make one happen, as step-error@100, kill%%500 or decode-0:exit@9 (see docs/security.md)",
    )


def configuration(arguments: argparse.Namespace) -> EngineConfig:
    return EngineConfig(
        model=arguments.model,
        dtype=arguments.dtype,
        quantize=arguments.quantize,
        device=arguments.device,
        block_size=arguments.block_size,
        kv_memory=arguments.kv_memory,
        swap_space=arguments.swap_space,
        max_model_len=arguments.max_model_len,
        control=chosen_control(arguments),
        check_invariants=arguments.check_invariants,
        seed=arguments.seed,
        check_every=arguments.check_every,
        crash_dir=arguments.crash_dir,
        step_timeout=arguments.step_timeout,
        faults=tuple(arguments.fault or ()),
        log_format=arguments.log_format,
        log_level=arguments.log_level,
        kv_events=_publishing(arguments),
        lease_seconds=arguments.lease_seconds,
    )


def _publishing(arguments: argparse.Namespace) -> KvPublishing | None:
    if arguments.kv_events is None:
        return None
    return KvPublishing(arguments.kv_events, arguments.kv_events_replay or "", arguments.kv_events_topic)


def settings(arguments: argparse.Namespace) -> ServeSettings:
    """Raises ArgumentTypeError for key files that cannot be read, and for a key of both kinds."""
    limits = Limits(
        **{name: getattr(arguments, name) for name in Limits.__struct_fields__},
    )
    access = Access(
        api_keys=_keys(arguments.api_key, arguments.api_key_file, "--api-key"),
        admin_keys=_keys(arguments.admin_key, arguments.admin_key_file, "--admin-key"),
        allowed_hosts=tuple(arguments.allowed_host or ()),
        allowed_origins=tuple(arguments.allowed_origin or ()),
        show_text=not arguments.no_text,
    )
    if set(access.api_keys) & set(access.admin_keys):
        raise argparse.ArgumentTypeError(
            "--api-key and --admin-key: a key was given to both; who is to be an admin needs a key of their own"
        )
    return ServeSettings(
        names=tuple(arguments.served_model_name or (arguments.model,)),
        limits=limits,
        access=access,
        recovery=Recovery(arguments.max_restarts, arguments.drain_timeout),
        logging=Logging(arguments.log_format, arguments.log_level, arguments.log_requests),
    )


def _keys(given: list[str] | None, file: FileName | None, flag: str) -> tuple[KeyDigest, ...]:
    return read_keys(given, file, flag, None if file is None else file.variable)


def _check_publishing(arguments: argparse.Namespace) -> None:
    """Whether KV events may be published so. Raises ArgumentTypeError.

    They hold everybody's tokens, and no key guards them.
    """
    if arguments.kv_events is None:
        if arguments.kv_events_replay is not None:
            raise argparse.ArgumentTypeError("--kv-events-replay: needs --kv-events, whose events it tells again")
        return
    if arguments.no_text:
        raise argparse.ArgumentTypeError(
            "--kv-events: events hold the tokens of prompts and answers; with --no-text nobody is told these"
        )
    for flag, endpoint in (("--kv-events", arguments.kv_events), ("--kv-events-replay", arguments.kv_events_replay)):
        if endpoint is None or not is_open(endpoint):
            continue
        danger = f"{flag} {endpoint}: whoever reaches it reads everybody's prompts and answers in tokens, without a key"
        if not arguments.kv_events_open:
            raise argparse.ArgumentTypeError(f"{danger}; say --kv-events-open if that is meant (docs/security.md)")
        log.say(f"--kv-events-open: {danger}", level=logging.WARNING)


def _serve(arguments: argparse.Namespace) -> int:
    log.configure(arguments.log_format, arguments.log_level, "api")
    try:
        chosen = settings(arguments)
        _check_publishing(arguments)
        config, cluster = configuration(arguments), chosen_cluster(arguments)
        if cluster is not None:
            check_cluster(config, cluster)
        else:
            check_alone(arguments)
            if any(":" in one for one in config.faults):
                raise argparse.ArgumentTypeError("--fault: names a worker, and this is no cluster")
    except argparse.ArgumentTypeError as error:
        return unusable(str(error))
    if arguments.fault:
        log.say(f"--fault: faults will be made to happen: {' '.join(arguments.fault)}", level=logging.WARNING)
    try:
        listener, chosen = open_listener(arguments.host, arguments.port, chosen, insecure=arguments.insecure)
    except argparse.ArgumentTypeError as error:
        return unusable(str(error))
    try:
        return (
            _serve_one(config, listener, chosen)
            if cluster is None
            else _serve_several(config, listener, chosen, cluster)
        )
    finally:
        listener.close()


def _serve_one(config: EngineConfig, listener: socket.socket, chosen: ServeSettings) -> int:
    # The core takes longest to start: it goes first, and this process imports its own libraries beside it.
    from engine.core_client import CoreProcess

    core = CoreProcess(config)
    try:
        import asyncio

        from engine.server.serve import serve

        return asyncio.run(serve(config, core, listener, chosen))
    finally:
        core.stop(timeout=1.0)


def _serve_several(
    config: EngineConfig, listener: socket.socket, chosen: ServeSettings, control: ClusterControl
) -> int:
    import asyncio

    from engine.cluster.cluster import Cluster
    from engine.core_client import CoreProcess
    from engine.server.serve import serve_cluster
    from engine.threads import physical_cores

    async def run() -> int:
        shared = msgspec.structs.replace(config, transfer="shared_memory")
        cores, memory = physical_cores(), host_memory(config)
        cluster = Cluster(shared, chosen, lambda spec: CoreProcess(spec.config), control, cores, memory)
        return await serve_cluster(cluster, listener)

    return asyncio.run(run())


def open_listener(
    host: str, port: int, chosen: ServeSettings, *, insecure: bool
) -> tuple[socket.socket, ServeSettings]:
    """Where it listens, and the settings of a server that does so there.

    Raises ArgumentTypeError where that cannot be, or must not: see `_danger`.
    """
    try:
        address = _resolve(host, port)
        chosen = _placed(chosen, host, is_loopback(address.name))
        if (danger := _danger(chosen.access, address)) is not None:
            if not insecure:
                raise argparse.ArgumentTypeError(
                    f"{danger}; set one (--api-key-file, see docs/security.md), or say --insecure"
                )
            log.say(f"--insecure: {danger}", level=logging.WARNING)
        return _bind(address), chosen
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that is none, as `a..b`
        reason = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"--host, --port: cannot listen on {host} port {port}: {reason}") from None


class _Address(NamedTuple):
    """Where to listen."""

    family: int
    protocol: int
    socket: Any  # what `bind` takes

    @property
    def name(self) -> str:
        return str(self.socket[0])


def _resolve(host: str, port: int) -> _Address:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, protocol, _, address = found[0]
    return _Address(family, protocol, address)


def _placed(chosen: ServeSettings, host: str, on_loopback: bool) -> ServeSettings:
    """The settings of a server that listens on `host`, a name which its operator thereby vouches for."""
    access = msgspec.structs.replace(
        chosen.access, on_loopback=on_loopback, allowed_hosts=(*chosen.access.allowed_hosts, host.lower())
    )
    return msgspec.structs.replace(chosen, access=access)


def _danger(access: Access, address: _Address) -> str | None:
    """Why it must not listen there: without API keys everyone would be answered. An admin key alone keeps nobody
    from generating; without one /engine/* is closed, so API keys alone suffice."""
    if access.on_loopback or access.api_keys:
        return None
    what = "the API" if access.admin_keys else "the API, and everybody's prompts and settings,"
    return f"--host: whoever reaches {address.name} could use {what} without an API key"


def _bind(address: _Address) -> socket.socket:
    listener = socket.socket(address.family, socket.SOCK_STREAM, address.protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address.socket)
        listener.listen(1024)  # a second server on this port fails at once, not when this one is ready
    except OSError:
        listener.close()
        raise
    return listener
