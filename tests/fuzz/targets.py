"""What reads what strangers wrote: for each reader good inputs, and the errors that it says it raises.

A reader's `read` checks more than that it ends: what it makes must be sound too, and its errors must say something.
Anything else that it raises is a bug.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np

from engine.cli import between, number, size, size_or_none, unicode_text
from engine.config import EngineConfig
from engine.faults import parse as parse_fault
from engine.framing import BadFrame, FrameSplitter, decode_from_core, decode_to_core, frame
from engine.keys import key, read_keys
from engine.loading.config import read_config, read_eos_token_ids, read_json
from engine.loading.errors import ModelError
from engine.loading.gguf_file import _Metadata
from engine.messages import Add, Output, Outputs, Reply, Start, Step
from engine.protocol import Gap, LoadRun, Record, Snapshot, decode_item, encode
from engine.sampling_params import SamplingParams
from engine.server.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from engine.server.engine_routes import ControlChange
from engine.server.errors import ApiError
from engine.server.parsing import parse
from engine.server.settings import Limits
from engine.sizing.families import read_shape
from engine.sizing.gguf_header import read_gguf_shape
from engine.trace_lengths import TraceError as LengthsError
from loadgen import options as load_options
from loadgen.arrivals import parse_arrivals
from loadgen.durations import parse_duration
from loadgen.metrics.slo import parse_slo
from loadgen.results.run_file import ResultError, RunEnd, RunFile
from loadgen.sse import EventParser
from loadgen.stop_rules import parse_rule
from loadgen.traces.model import TraceError
from loadgen.traces.reading import Format
from servers.kv_events import BadEvents
from tests.fuzz import server_readers
from tests.fuzz.target import Target, Wrong, jsons
from tests.fuzz.trace_readers import lengths_seeds, read_lengths, read_trace_as, trace_seeds
from tests.loadgen.results.sample_runs import completed, failed, header, write_run
from tests.tui.simulated import simulate
from tui import options as screen_options
from tui.client import UNDECODED, events_of
from tui.command_line import OPTIONS as SCREEN_OPTIONS
from tui.engine_api import NotAnEngine, Unreachable
from tui.feed import Feed
from tui.recording import RecordingError, read_heads, read_recording
from tui.sources import targets as screen_targets

# Server-sent events


def _events_seeds() -> list[bytes]:
    chunk = json.dumps({"id": "cmpl-1", "choices": [{"index": 0, "text": "é 1", "finish_reason": None}]}).encode()
    return [
        b"data: " + chunk + b"\n\ndata: [DONE]\n\n",
        b"\xef\xbb\xbf: comment\r\nevent: step\r\nid: 3\r\ndata: a\r\ndata:b\r\ndata\r\n\r\n",
        b"event: gap\ndata: {}\n\nretry: 1\r\r",
        b"data:" + b"x" * 300 + b"\n\n",
    ]


def _read_events(data: bytes, folder: Path) -> None:
    """What comes of it does not depend on how the network cuts it."""
    whole = EventParser().feed(data + b"\n\n")
    chance = random.Random(len(data))
    parser, pieces = EventParser(), []
    rest = data + b"\n\n"
    while rest:
        size = chance.choice((1, 1, 2, 3, 7, 50))
        pieces += parser.feed(rest[:size])
        rest = rest[size:]
    if pieces != whole:
        raise Wrong(f"cut in pieces {pieces} and not {whole}")


async def _cut(data: bytes, chance: random.Random) -> AsyncIterator[bytes]:
    while data:
        size = chance.choice((1, 1, 2, 3, 7, 50))
        yield data[:size]
        data = data[size:]


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _list(items: AsyncIterator[bytes]) -> list[bytes]:
    return [item async for item in items]


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """A coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise Wrong("it waits for something")


def _read_step_events(data: bytes, folder: Path) -> None:
    whole = _run(_list(events_of(_whole(data))))
    pieces = _run(_list(events_of(_cut(data, random.Random(len(data))))))
    if pieces != whole:
        raise Wrong(f"cut in pieces {pieces} and not {whole}")


# The engine's stream, and recordings of it


def _stream(steps: int = 12) -> list[Snapshot | Record]:
    items = simulate(
        steps, blocks=40, max_model_len=512, rate=9.0, system_tokens=100, seed=3, host_blocks=8, forked=0.4,
        snapshot_every=5, aborts=0.2,
    )  # fmt: skip
    return list(items)


def _stream_seeds() -> list[bytes]:
    items = _stream()
    lines = [encode(item) for item in items]
    gap, first = encode(Gap(3, 4)), items[0]
    assert isinstance(first, Snapshot)
    again = msgspec.structs.replace(first, engine=msgspec.structs.replace(first.engine, started=2000.0, restarts=1))
    return [
        b"\n".join(lines) + b"\n",
        b"\n".join(lines[:4]) + b"\n",
        b"\n".join((*lines[:3], gap, *lines[6:9])) + b"\n",
        b"\n".join((*lines[:3], encode(again), *lines[1:5])) + b"\n",
    ]


def _read_recording(data: bytes, folder: Path) -> None:
    path = folder / "recording"
    path.write_bytes(data)
    seen = 0
    for reading in (read_recording(path), read_heads(path)):
        try:
            seen = sum(1 for _ in reading)
        finally:
            reading.close()
    if not seen:
        raise Wrong("a recording with nothing in it")


class _Engine:
    """Tells a stream that is not to be believed."""

    def __init__(self, data: bytes) -> None:
        self._items: list[Record | Gap | Snapshot] = [decode_item(line) for line in data.split(b"\n") if line.strip()]

    async def snapshot(self) -> Snapshot:
        while self._items:
            item = self._items.pop(0)
            if isinstance(item, Snapshot):
                return item
        raise Unreachable("it has told all")

    async def failure(self) -> str:
        return "it was killed"

    async def steps(self, first: int) -> AsyncIterator[Record | Gap]:
        while self._items and not isinstance(self._items[0], Snapshot):
            item = self._items.pop(0)
            assert not isinstance(item, Snapshot)
            yield item


def _read_stream(data: bytes, folder: Path) -> None:
    """Follow it as the screen does: what cannot be is doubted, and what was believed can be drawn."""
    feed = Feed(_Engine(data), clock=lambda: 1000.0, wall=lambda: 0.0)  # type: ignore[arg-type]
    try:
        _run(feed._session())
    finally:
        view = feed.view()
        if view is not None:
            sum(view.engine.num_blocks > 0 for _ in view.requests)


# GGUF


def _gguf_seeds() -> list[bytes]:
    found = []
    for kinds in (("llama", 4), ("qwen2", [2, 1])):
        architecture, heads = kinds
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            writer = gguf.GGUFWriter(path, str(architecture))
            writer.add_block_count(2)
            writer.add_embedding_length(8)
            writer.add_context_length(512)
            writer.add_head_count(2 if isinstance(heads, list) else heads)
            writer.add_head_count_kv(heads if isinstance(heads, list) else 2)
            writer.add_rope_freq_base(10000.0)
            writer.add_token_list(["a", "b", "<s>"])
            writer.add_token_scores([0.5, 0.25, 0.125])
            writer.add_bool("tokenizer.ggml.add_bos_token", True)
            writer.add_tensor("token_embd.weight", np.zeros((3, 8), np.float16))
            writer.add_tensor("blk.0.attn_q.weight", np.zeros((8, 8), np.float32))
            writer.add_tensor("output_norm.weight", np.zeros(8, np.float32))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            found.append(path.read_bytes())
    return found


def _read_gguf_head(data: bytes, folder: Path) -> None:
    path = folder / "model.gguf"
    path.write_bytes(data)
    read_gguf_shape(path, "x")


def _read_gguf_file(data: bytes, folder: Path) -> None:
    """All of it but the conversion of tokenizer and weights, which transformers does."""
    path = folder / "model.gguf"
    path.write_bytes(data)
    metadata = _Metadata(path)
    metadata.rope_parameters({})


# config.json


CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 100, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "max_position_embeddings": 1000, "rms_norm_eps": 1e-5, "use_sliding_window": True, "sliding_window": 32,
    "max_window_layers": 2, "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 32},
    "eos_token_id": [1, 2], "torch_dtype": "bfloat16", "tie_word_embeddings": False, "head_dim": 8,
}  # fmt: skip
LATENT = {
    "model_type": "deepseek_v3", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "q_lora_rank": 24,
    "num_hidden_layers": 4, "num_attention_heads": 8, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_routed_experts": 8, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
    "n_shared_experts": 1, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


def _config_seeds() -> list[bytes]:
    llama = {**CONFIG, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    llama["rope_parameters"] = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}
    layers = {**CONFIG, "layer_types": ["full_attention", "sliding_attention"] * 2}
    return jsons(CONFIG, llama, layers)


def _read_config(data: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(data)
    try:
        read_config(folder)
    finally:
        read_eos_token_ids(folder)


def _read_shape(data: bytes, folder: Path) -> None:
    path = folder / "config.json"
    path.write_bytes(data)
    read_shape(read_json(path), str(path), "x")


# Bodies


USER = [{"role": "user", "content": "hi"}]
SAMPLING = {
    "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "n": 2, "best_of": 2,
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"5": 1.5},
    "stop": ["x", "é"], "stop_token_ids": [7], "min_tokens": 1, "ignore_eos": True, "priority": 1, "timeout": 5.5,
    "cache_salt": "s", "prefix_cache": True, "stream": True, "stream_options": {"include_usage": True},
    "response_format": {"type": "text"}, "user": "me", "model": "tiny",
}  # fmt: skip
BEAM = {
    "use_beam_search": True,
    "beam_width": 3,
    "n": 2,
    "length_penalty": 0.5,
    "early_stopping": "never",
    "max_tokens": 2,
}
CHATS = (
    {"messages": USER, **SAMPLING, "logprobs": True, "top_logprobs": 2},
    {"messages": [{"role": "system", "content": [{"type": "text", "text": "x"}]}, *USER], "max_completion_tokens": 5},
    {"messages": USER, **BEAM, "chat_template_kwargs": {"a": 1}, "tools": []},
)
COMPLETIONS = (
    {"prompt": "hi", **SAMPLING, "logprobs": 2, "echo": True},
    {"prompt": ["a", "b"], "prompt_logprobs": 1, "max_tokens": 2},
    {"prompt": [[1, 2], [3]], **BEAM},
    {"prompt": [5, 6, 7], "max_tokens": 0, "echo": True},
)
CONTROLS = (
    {"batching": "static", "allocation": "reserved", "max_num_seqs": 5, "max_wait": 1.5},
    {"prefix_cache": True, "chunked_prefill": False, "max_num_batched_tokens": 64, "max_prefill_chunk": 0},
    {"scheduling_policy": "priority", "preempt": "auto", "reserved_fit": "best"},
)
_LATENCY = {"p50": 0.5, "p99": None, "requests": 3}
LOAD = {
    **dict.fromkeys(("sessions", "sessions_done", "turns", "due", "queued", "sent", "in_flight", "completed"), 3),
    **dict.fromkeys(("ttft", "ttft_scheduled", "tpot", "e2e", "e2e_scheduled"), _LATENCY),
    "label": "x", "trace": "y", "elapsed": 1.5, "share": 0.5, "speed": 1.0, "failed": 0, "output_tokens": 9,
    "left": None, "bottleneck": False, "failure": "",
}  # fmt: skip
TOKENIZES = ({"prompt": "hi", "return_token_strs": True}, {"messages": USER, "add_generation_prompt": False})


def _read_body(kind: type[Any], work: Callable[[Any], object]) -> Callable[[bytes, Path], None]:
    """Parse it, check it, and go as far as the engine's settings of it. Every refusal is a 400 that can be sent."""

    def read(data: bytes, folder: Path) -> None:
        try:
            work(parse(data, kind))
        except ApiError as error:
            msgspec.json.encode((error.message, error.param, error.code))  # half a surrogate pair could not be sent
            if error.status != 400 or not error.message.strip():
                raise Wrong(f"a refusal that says nothing: {error.status} {error}") from error
            raise

    return read


def _settings_of(body: ChatBody | CompletionBody) -> None:
    limits = Limits()
    body.check(limits)
    prompts = body.prompts() if isinstance(body, CompletionBody) else [[]]
    wanted = body.wanted_tokens[1] if isinstance(body, ChatBody) else body.max_tokens
    sampling = body.sampling(16 if wanted is None else wanted, 259)
    scheduling, asked = body.scheduling("me", limits), body.asked()
    msgspec.json.encode((prompts, sampling, scheduling, asked, body.candidates, body.candidates_field, body.stops))


# Frames between the processes


def _frame_seeds() -> list[bytes]:
    sampling = SamplingParams(max_tokens=3, logit_bias={5: 1.0}, stop_token_ids=(1,))
    to_core = (Start(EngineConfig()), Add("cmpl-1", (1, 2, 3), sampling, siblings=("cmpl-1-1",)))
    output = Output("cmpl-1", 5, -0.5, ((5, -0.5),), "stop", 5, 3, None)
    from_core = (Outputs((output,)), Step(1, b"{}"), Reply(1, 2, b"[]"))
    return [b"".join(map(frame, to_core)), b"".join(map(frame, from_core))]


def _read_frames(data: bytes, folder: Path) -> None:
    chance = random.Random(len(data))
    cuts = sorted(chance.randint(0, len(data)) for _ in range(9))
    pieces = [data[begin:end] for begin, end in itertools.pairwise((0, *cuts, len(data)))]
    bodies, bad = _split([data])
    if _split(pieces) != (bodies, bad):
        raise Wrong("frames depend on how they are cut")
    for body in bodies:
        for decode in (decode_to_core, decode_from_core):
            try:
                decode(body)
            except BadFrame as error:
                bad = bad or str(error)
    if bad:
        raise BadFrame(bad)


def _split(pieces: Iterable[bytes]) -> tuple[list[bytes], str]:
    """Frames' bodies, and what ended them."""
    splitter, bodies = FrameSplitter(), list[bytes]()
    try:
        for piece in pieces:
            for body in splitter.feed(piece):
                bodies.append(body)  # also those before a bad one
    except BadFrame as error:
        return bodies, str(error)
    return bodies, ""


# Options


OPTIONS: tuple[Callable[[str], object], ...] = (
    size, size_or_none, between(1, 100), number(0, 5), unicode_text, key,
    load_options.positive_int, load_options.positive_float, load_options.whole_number, load_options.server_url,
    load_options.engine_arguments, load_options.api_key, load_options.yes_or_no,
    screen_targets.server_urls, screen_targets.header, screen_targets.kv_endpoint, screen_options.secret,
    screen_options.number(0, 9), screen_options.whole(0, 9),
)  # fmt: skip
VALUE_OPTIONS: tuple[Callable[[str], object], ...] = (
    parse_duration, parse_slo, parse_rule, parse_fault, lambda text: parse_arrivals(text, 1),
)  # fmt: skip
OPTION_TEXTS = (
    "512MiB", "1.5 gb", "1e9", "0", "17", "-1", "2s", "1.5m", "500ms", "http://127.0.0.1:8000/v1", "https://[::1]:80",
    "user:pass@host", "--port 0 --model 'tiny x'", "ttft:p99=500ms", "ttft=500ms,tpot=50ms", "requests=100",
    "errors=5%", "time=5m", "poisson:2", "gamma:2,burstiness=0.5", "ramp:1..5,over=10s", "steps:1,2,3,each=30s",
    "users:10", "trace", "on", "sk-abcdef", "step-error@100", "kill%500", "# x",
)  # fmt: skip


def _option_seeds() -> list[bytes]:
    return [text.encode() for text in OPTION_TEXTS]


def _read_options(data: bytes, folder: Path) -> None:
    """By all parsers, each of which must keep to its own errors. The text is what a command line would have."""
    text = data.decode("utf-8", "surrogateescape")
    failed: Exception | None = None
    for option in OPTIONS:
        try:
            option(text)
        except argparse.ArgumentTypeError as error:
            failed = error
    for option in VALUE_OPTIONS:
        try:
            option(text)
        except ValueError as error:
            if type(error) is not ValueError:
                raise Wrong(f"{type(error).__name__} says nothing to a person: {error}") from error
            failed = error
    keys = folder / "keys"
    keys.write_bytes(data)
    keys.chmod(0o600)  # or it is warned of others
    for read in (lambda: read_keys(None, str(keys), "--api-key"), lambda: screen_options.secret_in(keys)):
        try:
            read()
        except argparse.ArgumentTypeError as error:
            failed = error
    if failed is not None:
        raise failed


# Files that the programs write, and that people change


def _run_seeds() -> list[bytes]:
    records = [completed(), completed(1, tokens=3), failed(1), failed(2, 0)]
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        end = RunEnd(at=9.5, client={"a": 1}, moments=((1.0, 2, 3, 4),), speed_changes=((1.0, 2.0),), notes=("x",))
        write_run(whole, records, end, header(3, 4))
        write_run(killed, records, None, header(3, 4, arrivals="poisson:2"))
        return [whole.read_bytes(), killed.read_bytes()]


def _read_run(data: bytes, folder: Path) -> None:
    path = folder / "run"
    path.write_bytes(data)
    run = RunFile.read(path)
    for _ in run.records():
        pass
    run.final_turns()
    _ = run.complete


def _read_screen_config(data: bytes, folder: Path) -> None:
    path = folder / "config.toml"
    path.write_bytes(data)
    screen_options.read_config(path, SCREEN_OPTIONS)


SCREEN_CONFIG = b"""url = "http://127.0.0.1:8000"
frames = 10
readonly = true
speed = 2.5
panel = 'batch'
"""

FEED_ERRORS = (
    *UNDECODED, Unreachable, NotAnEngine, ArithmeticError, LookupError, TypeError, ValueError,  # as Feed.run has them
)  # fmt: skip

TARGETS: tuple[Target, ...] = (
    Target("sse", _events_seeds, _read_events, (), (b"data:", b"data: ", b": ", b"event:", b"\r")),
    Target("sse-steps", _events_seeds, _read_step_events, (NotAnEngine,), (b"data:", b"\r\n\r\n", b"\r")),
    *(
        Target(
            f"trace-{format}",
            lambda format=format: trace_seeds(format),  # type: ignore[misc]
            read_trace_as(format),
            (TraceError,),
            may_be_zipped=True,
        )
        for format in Format
    ),
    Target("trace-lengths", lengths_seeds, read_lengths, (LengthsError,)),
    Target("recording", _stream_seeds, _read_recording, (RecordingError,), may_be_zipped=True),
    Target(
        "source-recording",
        server_readers.recording_seeds,
        server_readers.read_sources,
        (RecordingError,),
        may_be_zipped=True,
    ),
    Target(
        "metrics-page",
        server_readers.page_seeds,
        server_readers.read_page,
        (ValueError,),
        (b"vllm:", b"_bucket{le=", b"NaN", b"+Inf", b"-1e400", b"# TYPE "),
    ),
    Target("kv-events", server_readers.kv_seeds, server_readers.read_kv, (BadEvents,), binary=True),
    Target("slots", server_readers.slots_seeds, server_readers.read_rows, (ValueError,)),
    Target("step-stream", _stream_seeds, _read_stream, FEED_ERRORS),
    Target("gguf-head", _gguf_seeds, _read_gguf_head, (ModelError,), binary=True),
    Target("gguf-file", _gguf_seeds, _read_gguf_file, (ModelError,), binary=True),
    Target("run-file", _run_seeds, _read_run, (ResultError,)),
    Target(
        "screen-config",
        lambda: [SCREEN_CONFIG, b'model = "tiny" # x\nweb = true\n'],
        _read_screen_config,
        (argparse.ArgumentTypeError,),
        (b"=", b"url = ", b"[[", b"]]", b'"""', b"0x", b"inf", b"1979-05-27"),
    ),
    Target("config-json", _config_seeds, _read_config, (ModelError,)),
    Target("config-shape", lambda: jsons(CONFIG, LATENT), _read_shape, (ModelError,)),
    Target("body-chat", lambda: jsons(*CHATS), _read_body(ChatBody, _settings_of), (ApiError,)),
    Target("body-completion", lambda: jsons(*COMPLETIONS), _read_body(CompletionBody, _settings_of), (ApiError,)),
    Target("body-tokenize", lambda: jsons(*TOKENIZES), _read_body(TokenizeBody, str), (ApiError,)),
    Target("body-detokenize", lambda: jsons({"tokens": [1, 2]}), _read_body(DetokenizeBody, str), (ApiError,)),
    Target("body-control", lambda: jsons(*CONTROLS), _read_body(ControlChange, str), (ApiError,)),
    Target("body-load", lambda: jsons(LOAD), _read_body(LoadRun, encode), (ApiError,)),
    Target("frames", _frame_seeds, _read_frames, (BadFrame,), binary=True),
    Target("options", _option_seeds, _read_options, (argparse.ArgumentTypeError, ValueError)),
)
BY_NAME = {target.name: target for target in TARGETS}
