"""`paged-engine plan`: the flags, the question they make, and its answer as text or JSON."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, get_args

from engine.cli import USAGE, Adder, between, show, size, size_or_none, unicode_text
from engine.sizing.memory import KVDtype

CONTEXT, PROMPT, OUTPUT = 4096, 1024, 128
_DESCRIPTION = (
    "KV arithmetic: what a model's weights and KV cache take, how many requests fit, and the best block size. "
    "From a config alone, and every figure says what it rests on. Without --model and --memory, the arithmetic of "
    "blocks alone."
)


def add_command(commands: Any) -> None:
    """Add `plan` to the subparsers `commands`."""
    parser = commands.add_parser(
        "plan", help="size KV memory from a model's config, without loading it", description=_DESCRIPTION
    )
    parser.set_defaults(command="plan", run=_run)
    setup = Adder(parser)
    setup(
        "--model",
        type=unicode_text,
        help="config.json, a folder with one, a .gguf file, a hub id, smollm2-135m or tiny",
    )
    setup("--memory", type=size, metavar="SIZE", help="of one device, as 80GiB")
    setup(
        "--gpu-memory-utilization",
        type=_share,
        default=0.9,
        metavar="SHARE",
        help="what of the memory may be used (default: %(default)s)",
    )
    setup(
        "--overhead",
        type=size_or_none,
        default=0,
        metavar="SIZE",
        help="for activations and CUDA graphs (default: 0)",
    )
    setup("--tensor-parallel-size", type=between(1, 1024), default=1, metavar="N", help="devices (default: 1)")
    setup(
        "--weights-bits",
        choices=("auto", "4", "8", "16", "32"),
        default="auto",
        help="per weight (default: as the checkpoint)",
    )
    setup("--kv-dtype", choices=get_args(KVDtype), default="auto", help="default: the config's")
    setup("--context", type=between(1), metavar="N", help="longest request (default: 4096, or the model's if less)")
    setup("--block-size", type=between(1, 1024), default=16, metavar="N", help="slots per KV block (default: 16)")
    add = parser.add_argument
    add("--weights", type=size, metavar="SIZE", help="take this for the weights, all devices together")
    add("--kv-bytes-per-token", type=size, metavar="SIZE", help="take this for the KV of a token, on each device")
    add("--trace", type=Path, metavar="FILE", help="requests' lengths: Mooncake JSONL, Azure CSV or chat JSONL")
    add("--prompt-tokens", type=between(1), metavar="N", help=f"or this for every request (default: {PROMPT})")
    add("--output-tokens", type=between(0), metavar="N", help=f"and this (default: {OUTPUT})")
    add("--sessions", type=between(1), metavar="N", help="that begin with the same --shared-tokens")
    add("--shared-tokens", type=between(1), metavar="N", help="that all requests begin with")
    add(
        "--lookup-bytes",
        type=between(1, 1 << 20),
        default=64,
        metavar="N",
        help="read to look one block up, per layer and step (default: 64, a cache line)",
    )
    add("--json", action="store_true", help="print every figure as JSON")


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, got {text!r}")
    return value


def _run(arguments: argparse.Namespace) -> int:
    # What `--help` does not need is imported here.
    import msgspec

    from engine.loading.errors import ModelError
    from engine.sizing.capacity import plan_capacity
    from engine.sizing.memory import SizingError
    from engine.sizing.report import render
    from engine.trace_lengths import TraceError

    try:
        plan = plan_capacity(_question(arguments))
    except (ModelError, SizingError, TraceError) as error:
        print(f"paged-engine plan: error: {error}", file=sys.stderr)
        return USAGE
    if arguments.json:
        return show(msgspec.json.format(msgspec.json.encode(plan), indent=2).decode())
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return show(render(plan, color=on_terminal and "NO_COLOR" not in os.environ))


def _question(arguments: argparse.Namespace) -> Any:
    from engine.sizing.capacity import Question
    from engine.sizing.find import find_shape
    from engine.sizing.memory import SizingError

    shape = find_shape(arguments.model) if arguments.model is not None else None
    if arguments.memory is not None and shape is None and arguments.kv_bytes_per_token is None:
        raise SizingError("--memory needs --model, or --kv-bytes-per-token and --weights")
    if arguments.sessions is not None and arguments.shared_tokens is None:
        raise SizingError("--sessions needs --shared-tokens, the tokens that all of them begin with")
    context = arguments.context
    if context is None:
        context = min(CONTEXT, shape.max_context or CONTEXT) if shape else CONTEXT
    lengths, source, left_out = _lengths(arguments, context)
    shortest = min(prompt for prompt, _ in lengths.requests)
    if arguments.shared_tokens is not None and arguments.shared_tokens > shortest:
        prompt = "--trace's shortest prompt" if arguments.trace is not None else "the prompt (--prompt-tokens)"
        raise SizingError(
            f"--shared-tokens: must be from 1 to {shortest:,}, the tokens of {prompt}, not {arguments.shared_tokens:,}"
        )
    return Question(
        shape=shape,
        memory=arguments.memory,
        utilization=arguments.gpu_memory_utilization,
        overhead=arguments.overhead,
        devices=arguments.tensor_parallel_size,
        weights_bits=None if arguments.weights_bits == "auto" else int(arguments.weights_bits),
        weights=arguments.weights,
        kv_dtype=arguments.kv_dtype,
        kv_bytes_per_token=arguments.kv_bytes_per_token,
        context=context,
        block_size=arguments.block_size,
        lengths=lengths,
        lengths_source=source,
        lengths_assumed=arguments.trace is None and arguments.prompt_tokens is None and arguments.output_tokens is None,
        left_out=left_out,
        sessions=arguments.sessions,
        shared_tokens=arguments.shared_tokens,
        lookup_bytes=arguments.lookup_bytes,
    )


def _lengths(arguments: argparse.Namespace, context: int) -> tuple[Any, str, int]:
    """The requests' lengths, where they are from, and how many were longer than the context."""
    from engine.sizing.blocks import Lengths
    from engine.sizing.memory import SizingError
    from engine.trace_lengths import read_trace

    prompt, output = arguments.prompt_tokens, arguments.output_tokens
    if arguments.trace is not None:
        if prompt is not None or output is not None:
            raise SizingError("--trace has the lengths: --prompt-tokens and --output-tokens go without it")
        requests = [(request.prompt_tokens, request.output_tokens) for request in read_trace(arguments.trace)]
        kept = tuple(request for request in requests if sum(request) <= context)
        if not kept:
            shortest = min(map(sum, requests))
            raise SizingError(f"--context: must be at least {shortest}, the trace's shortest request, not {context}")
        return Lengths(kept, typical=False), f"{len(kept):,} of {arguments.trace.name}", len(requests) - len(kept)
    if prompt is None and output is None:
        if context < PROMPT + OUTPUT:
            prompt = max(1, context * PROMPT // (PROMPT + OUTPUT))
            return Lengths(((prompt, context - prompt),), True), "assumed, to fill --context", 0
        return Lengths(((PROMPT, OUTPUT),), True), "assumed: vllm bench's default for random prompts", 0
    prompt, output = PROMPT if prompt is None else prompt, OUTPUT if output is None else output
    if prompt + output > context:
        raise SizingError(
            f"--prompt-tokens and --output-tokens: {prompt:,} + {output:,} must be at most --context {context:,}"
        )
    return Lengths(((prompt, output),), True), "--prompt-tokens, --output-tokens", 0
