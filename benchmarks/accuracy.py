"""`python -m benchmarks.accuracy`: what fewer bits cost, beside what they bring, in this engine on this machine.

Each variant (fp32, bf16, int8, q4) is told by

- perplexity on two texts that the project ships: `chat`, the system prompt of `traces/chat500.jsonl` and its first
  different messages, and `docs`, the README and what is beside it; in windows of 512 tokens, the first of each aside;
- how often the most likely next token, given the same text, is the one that fp32 and bf16 have;
- greedy answers to messages of `chat500`, beside those of fp32 and bf16: how many tokens pass before the first that
  differs, and how many answers are the same to the end. One differing token changes all that follow;
- speed, in turns, round after round: time per token alone, prefill of one prompt, a burst of 64 requests.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.options import check_file
from benchmarks.works import Work, make_work
from engine.config import DEFAULT_MODEL, EngineConfig
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.sampling_params import SamplingParams
from engine.threads import set_threads

if TYPE_CHECKING:
    from engine.core import EngineCore

ROOT = Path(__file__).parent.parent
DOCS = ("README.md", "docs/kv-arithmetic.md", "traces/README.md")
WINDOW = 512  # tokens that are scored together
PREFILL = 512
WIDTH = 150  # columns of a table that no terminal bounds
VARIANTS: dict[str, dict[str, str]] = {
    "fp32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
    "q4": {"dtype": "bfloat16", "quantize": "q4"},
}
REFERENCES = ("fp32", "bf16")


class Scored(msgspec.Struct, frozen=True):
    """Of a text's tokens after the first of each window: the sum of log-probabilities, and the best at each place."""

    logprob: float
    best: tuple[int, ...]

    @property
    def perplexity(self) -> float:
        return math.exp(-self.logprob / len(self.best))


class Found(msgspec.Struct, frozen=True):
    """One variant's accuracy."""

    texts: dict[str, Scored]
    answers: tuple[tuple[int, ...], ...]


class Agreement(msgspec.Struct, frozen=True):
    """One variant beside another."""

    next_token: dict[str, float]  # by text: share of places where the most likely token is the same
    mean_common_tokens: float  # of an answer, before the first that differs
    same_answers: float  # share of answers


class Speed(msgspec.Struct, frozen=True):
    """Medians over rounds."""

    single_ms: float  # per token, after the first
    prefill_rate: float  # tokens/s of one prompt
    burst_rate: float  # output tokens/s


def texts(folder: Path, messages: int) -> tuple[dict[str, list[int]], list[list[int]]]:
    """The token ids of each text, and the prompts to be answered."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    with (ROOT / "traces" / "chat500.jsonl").open(encoding="utf-8") as file:
        header, *sessions = map(json.loads, file)
    system = header["systems"]["main"]
    users = list(dict.fromkeys(turn["user"] for line in sessions for turn in line["turns"] if "user" in turn))
    found = {
        "chat": "\n\n".join([system, *users[:100]]),
        "docs": "\n\n".join((ROOT / name).read_text(encoding="utf-8") for name in DOCS),
    }
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": user}], add_generation_prompt=True, return_dict=False
        )
        for user in users[:messages]
    ]
    return {
        name: tokenizer.encode(text, add_special_tokens=False, verbose=False) for name, text in found.items()
    }, prompts


def score(core: EngineCore, tokens: Sequence[int]) -> Scored:
    """Score a text, window after window."""
    total, best = 0.0, []
    for start in range(0, len(tokens) - 1, WINDOW):
        window = list(tokens[start : start + WINDOW])
        core.add(f"text{start}", window, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1))
        while core.has_work:
            for output in core.step()[0]:
                total += sum(token.logprob for token in output.prompt_logprobs)
                best += [token.top[0][0] for token in output.prompt_logprobs]
    return Scored(total, tuple(best))


def answer(core: EngineCore, prompts: Sequence[Sequence[int]], length: int) -> tuple[tuple[int, ...], ...]:
    """Greedy answers of up to `length` tokens."""
    found: dict[str, list[int]] = {f"answer{i}": [] for i in range(len(prompts))}
    for name, prompt in zip(found, prompts, strict=True):
        core.add(name, list(prompt), SamplingParams(max_tokens=length, temperature=0.0))
    while core.has_work:
        for output in core.step()[0]:
            if output.token_id is not None:
                found[output.request].append(output.token_id)
    return tuple(map(tuple, found.values()))


def agreement(one: Found, other: Found) -> Agreement:
    """How far `one` agrees with `other`."""
    common = [_common(a, b) for a, b in zip(one.answers, other.answers, strict=True)]
    same = [a == b for a, b in zip(one.answers, other.answers, strict=True)]
    return Agreement(
        {
            name: statistics.mean(a == b for a, b in zip(scored.best, other.texts[name].best, strict=True))
            for name, scored in one.texts.items()
        },
        statistics.mean(common),
        statistics.mean(same),
    )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def run(core: EngineCore, work: Work) -> tuple[float, float, int]:
    """Seconds to the first token, to the last, and the tokens made."""
    from benchmarks.peers.offline import add

    add(core, work)
    first = last = 0.0
    count = 0
    begun = time.perf_counter()
    while core.has_work:
        made = sum(output.token_id is not None for output in core.step()[0])
        last = time.perf_counter() - begun
        first = first or (last if made else 0.0)
        count += made
    return first, last, count


def measure(cores: dict[str, EngineCore], vocabulary: int, rounds: int, say: Any) -> dict[str, Speed]:
    """Speed of each variant, in turns; the first round is not counted."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in cores}
    for number in range(rounds + 1):
        for name, core in cores.items():
            say(f"speed, round {number} of {rounds}: {name}")
            single = make_work("single", str(number), vocabulary)
            burst = make_work("burst", str(number), vocabulary, 1.0 if number else 0.2)
            prompt = make_work("shared-prefix", str(number), vocabulary).prompts[0][:PREFILL]
            first, last, count = run(core, single)
            prefill, _, _ = run(core, Work("prefill", (prompt,), (1,)))
            _, whole, made = run(core, burst)
            if number:
                found[name].append(((last - first) / (count - 1) * 1e3, PREFILL / prefill, made / whole))
    return {
        name: Speed(*(statistics.median(column) for column in zip(*rows, strict=True))) for name, rows in found.items()
    }


def show(report: dict[str, Any]) -> Table:
    """The report as a table, a variant to a row."""
    table = Table(title=report["about"], title_justify="left", show_lines=True)
    names = "\n".join(report["tokens"])
    columns = ["variant", f"perplexity\n{names}"]
    for reference in report["references"]:
        columns += [f"next token\nas {reference}\n{names}", f"answers as {reference}\nto the end\nfor tokens"]
    if report["speed"]:
        columns += ["alone\nms per token", "prefill\ntokens/s", "burst\ntokens/s"]
    for column in columns:
        table.add_column(column, justify="left" if column == "variant" else "right")
    for name, perplexities in report["perplexity"].items():
        row = [name, "\n".join(f"{value:.3f}" for value in perplexities.values())]
        for reference in report["references"]:
            found: Agreement | None = report["agreement"][name].get(reference)
            if found is None:
                row += ["", ""]
            else:
                shares = "\n".join(f"{share:.1%}" for share in found.next_token.values())
                row += [shares, f"{found.same_answers:.0%}\n{found.mean_common_tokens:.1f}"]
        if report["speed"]:
            speed: Speed = report["speed"][name]
            row += [f"{speed.single_ms:.2f}", f"{speed.prefill_rate:,.0f}", f"{speed.burst_rate:.0f}"]
        table.add_row(*row)
    return table


def measure_all(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run what was asked for. Raises ModelError or SettingError."""
    from engine.build import build_core

    resolved = resolve_model(arguments.model)
    tokens, prompts = texts(resolved.folder, arguments.answers)
    cores, found = {}, {}
    for name in arguments.variants:
        cores[name] = build_core(msgspec.convert({"model": arguments.model} | VARIANTS[name], EngineConfig))
        scored = {}
        for text, ids in tokens.items():
            console.print(f"{name}: scoring {text}", highlight=False)
            scored[text] = score(cores[name], ids)
        console.print(f"{name}: answering", highlight=False)
        found[name] = Found(scored, answer(cores[name], prompts, arguments.tokens))
    references = [name for name in REFERENCES if name in found]
    counts = {name: len(one.best) for name, one in next(iter(found.values())).texts.items()}
    speed = measure(cores, resolved.config.vocab_size, arguments.rounds, console.print) if arguments.rounds else {}
    texts_told = ", ".join(f"{count:,} tokens of {name}" for name, count in counts.items())
    return {
        "about": f"{arguments.model}: {texts_told}; {len(prompts)} answers of up to {arguments.tokens} tokens",
        "model": arguments.model,
        "tokens": counts,
        "references": references,
        "perplexity": {
            name: {text: scored.perplexity for text, scored in one.texts.items()} for name, one in found.items()
        },
        "agreement": {
            name: {other: agreement(one, found[other]) for other in references if other != name}
            for name, one in found.items()
        },
        "speed": speed,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="default: %(default)s")
    parser.add_argument(
        "--variants", nargs="+", choices=tuple(VARIANTS), default=tuple(VARIANTS), help="default: all of them"
    )
    parser.add_argument("--answers", type=int, default=32, metavar="N", help="to compare (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="of an answer (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of speed; 0: none (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    arguments = parser.parse_args(argv)
    for name, least in (("answers", 1), ("tokens", 1), ("rounds", 0)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name}: must be at least {least}, got {getattr(arguments, name)}")
    check_file(parser, "--json", arguments.json)
    set_threads()  # before torch is imported
    from engine.build import SettingError

    try:
        report = measure_all(arguments, Console(stderr=True))
    except (ModelError, SettingError) as error:
        print(f"benchmarks.accuracy: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmarks.accuracy: interrupted; figures are shown when all are measured", file=sys.stderr)
        return 130
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(show(report))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
