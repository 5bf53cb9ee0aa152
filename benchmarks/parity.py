"""loadgen beside NVIDIA's AIPerf: the same request bodies to the same server, in turns, and what each measured.

    python3 -m venv /tmp/aiperf && /tmp/aiperf/bin/pip install aiperf
    python -m benchmarks.parity                     our engine with SmolLM2, four requests at a time
    python -m benchmarks.parity --rate 2            two requests a second instead
    python -m benchmarks.parity --golden --rate 20  a golden server, whose own times say who is right
    python -m benchmarks.parity --url http://...    any other server

Figures that mean the same: AIPerf's time to first token, request latency and inter-chunk latency are our TTFT, E2E and
ITL: both see chunks with content alone, and begin before a connection is made. Its inter-token latency is our TPOT. Its
throughput ends at the last chunk with content, ours at the end of the last response. What the server says of itself is
beside each: where the two differ and both agree with it, it was slower for one of them, which AIPerf's many processes
can cause; so the server has half of the cores for itself. Exits with 1 if a judged figure differs by more than 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.client_load import golden, told_by
from loadgen.engine_process import EngineProcess

LIMIT = 0.05  # of a figure
PEER = Path("/tmp/aiperf/bin/aiperf")
MODEL = "smollm2-135m"
TOKENIZER = Path.home() / ".cache/paged-top/models/smollm2-135m-v2"  # AIPerf wants one, though it counts by usage
TEXT = Path(__file__).parents[1] / "loadgen/system_prompt.txt"
FIGURES = {  # ours, and the peer's name and statistic
    "mean_ttft_ms": ("time_to_first_token", "avg"),
    "median_ttft_ms": ("time_to_first_token", "p50"),
    "p90_ttft_ms": ("time_to_first_token", "p90"),
    "mean_e2el_ms": ("request_latency", "avg"),
    "median_e2el_ms": ("request_latency", "p50"),
    "p90_e2el_ms": ("request_latency", "p90"),
    "mean_tpot_ms": ("inter_token_latency", "avg"),
    "median_tpot_ms": ("inter_token_latency", "p50"),
    "mean_itl_ms": ("inter_chunk_latency", "avg"),
    "output_throughput": ("output_token_throughput", "avg"),
    "request_throughput": ("request_throughput", "avg"),
    "total_input_tokens": ("total_usage_prompt_tokens", "avg"),
    "total_output_tokens": ("total_usage_completion_tokens", "avg"),
}
SERVER_FIGURES = {  # ours, and vLLM's name of what a server measures of itself
    "mean_ttft_ms": "vllm:time_to_first_token_seconds",
    "mean_e2el_ms": "vllm:e2e_request_latency_seconds",
    "mean_tpot_ms": "vllm:request_time_per_output_token_seconds",
}
JUDGED = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput", "total_output_tokens")

Measured = dict[str, float]


def bodies(model: str, count: int, words: int, tokens: int) -> list[dict[str, Any]]:
    """Chats of some hundred words, no two alike, and answers of a fixed length."""
    draw, text = random.Random(0), TEXT.read_text().split()
    sizes = [words + number % 5 * words // 10 for number in range(count)]
    return [
        {
            "model": model,
            "messages": [{"role": "user", "content": " ".join(draw.choices(text, k=size))}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for size in sizes
    ]


def by_loadgen(url: str, asked: Sequence[dict[str, Any]], rate: float | None, concurrency: int) -> Measured:
    """`loadgen replay` of an OpenAI batch file."""
    with tempfile.TemporaryDirectory() as folder:
        trace, out = Path(folder, "batch.jsonl"), Path(folder, "figures.json")
        lines = [
            {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
            for number, body in enumerate(asked)
        ]
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        arrivals = f"users:{concurrency}" if rate is None else f"constant:{rate:g}"
        options = ["--url", url, "--arrivals", arrivals, "--no-probe", "--no-plots", "--json", str(out)]
        _run([sys.executable, "-m", "loadgen.cli", "replay", str(trace), *options])
        summary = json.loads(out.read_text())["summary"]
    return {name: float(summary[name]) for name in FIGURES}


def by_aiperf(
    program: Path, url: str, asked: Sequence[dict[str, Any]], rate: float | None, concurrency: int
) -> Measured:
    """`aiperf profile` of a file of raw bodies."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "bodies.jsonl")
        file.write_text("".join(json.dumps(body) + "\n" for body in asked))
        at_once = ["--concurrency", str(concurrency)]
        _run(
            [
                *(str(program), "profile", "--model-names", str(asked[0]["model"]), "--url", url),
                *("--endpoint-type", "chat", "--streaming", "--use-server-token-count"),
                *("--input-file", str(file), "--custom-dataset-type", "raw-payload"),
                *("--dataset-sampling-strategy", "sequential", "--request-count", str(len(asked))),
                *(at_once if rate is None else ["--request-rate", f"{rate:g}", "--arrival-pattern", "constant"]),
                *("--tokenizer", str(TOKENIZER), "--ui", "none", "--no-server-metrics", "--artifact-dir", folder),
            ]
        )
        found = json.loads(Path(folder, "profile_export_aiperf.json").read_text())
    return {name: float(found[theirs][statistic]) for name, (theirs, statistic) in FIGURES.items()}


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")


class Truth:
    """What a server itself has measured since it was last asked; nothing where it does not tell.

    A golden server knows all; one with vLLM's metrics its means, from when it has read a request to when it writes.
    """

    def __init__(self, url: str, is_golden: bool) -> None:
        self._url, self._is_golden = url, is_golden
        self._sums: dict[str, float] = {}
        self.told()

    def told(self) -> Measured:
        return _told_by_golden(self._url) if self._is_golden else self._told_by_metrics()

    def _told_by_metrics(self) -> Measured:
        try:
            with urllib.request.urlopen(f"{self._url}/metrics") as reply:
                lines = reply.read().decode()
        except urllib.error.HTTPError:
            return {}
        sums: dict[str, float] = {}
        for name, value in re.findall(r"^([\w:]+)(?:{.*})? (\S+)$", lines, re.MULTILINE):
            sums[name] = sums.get(name, 0.0) + float(value)
        grown = {name: value - self._sums.get(name, 0.0) for name, value in sums.items()}
        self._sums = sums
        return {
            name: grown[f"{theirs}_sum"] / count * 1000
            for name, theirs in SERVER_FIGURES.items()
            if (count := grown.get(f"{theirs}_count"))
        }


def _told_by_golden(url: str) -> Measured:
    """Its answers have a chunk for each token."""
    served = told_by(url).served
    if not served:
        return {}
    times = [[(moment - one.received) * 1000 for moment in one.content_times] for one in served]
    of = {
        "ttft": [moments[0] for moments in times],
        "e2el": [moments[-1] for moments in times],
        "tpot": [(moments[-1] - moments[0]) / (len(moments) - 1) for moments in times],
        "itl": [after - before for moments in times for before, after in pairwise(moments)],
    }
    seconds = max(one.content_times[-1] for one in served) - min(one.received for one in served)
    figures = {"output_throughput": sum(map(len, times)) / seconds, "request_throughput": len(times) / seconds}
    for name, values in of.items():
        figures[f"mean_{name}_ms"] = statistics.fmean(values)
        figures[f"median_{name}_ms"] = statistics.median(values)
    return figures


def cores() -> tuple[set[int], set[int]]:
    """The server's, and those of whoever measures: what one needs must not slow the other down."""
    mine = sorted(os.sched_getaffinity(0))
    half = max(1, len(mine) // 2)
    return set(mine[:half]), set(mine[half:] or mine)


@contextlib.asynccontextmanager
async def server(options: argparse.Namespace) -> AsyncIterator[str]:
    """Its address. It has half of the cores, and this process and all that it starts later have the others.

    Our engine keeps no prefixes: every round finds what the first one found.
    """
    if options.url is not None:
        yield options.url
        return
    theirs, ours = cores()
    os.sched_setaffinity(0, theirs)
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(len(theirs))))
    if options.golden:
        with golden(0.1, 0.02) as url:
            os.sched_setaffinity(0, ours)
            yield url
    else:
        async with EngineProcess(("--model", MODEL, "--no-prefix-cache"), print) as engine:
            os.sched_setaffinity(0, ours)
            yield engine.url


async def compare(options: argparse.Namespace) -> bool:
    """Rounds in which the two take turns at going first; whether all figures agree."""
    asked = bodies("golden" if options.golden else options.model, options.requests, options.words, options.tokens)
    load = asked, options.rate, options.concurrency
    rounds: dict[str, list[Measured]] = {"loadgen": [], "aiperf": []}
    truths: dict[str, list[Measured]] = {"loadgen": [], "aiperf": []}
    async with server(options) as url:
        await asyncio.to_thread(by_loadgen, url, asked[:8], None, 4)  # what a first round alone would pay for
        truth = Truth(url, options.golden)
        for number in range(options.rounds):
            for name in ("loadgen", "aiperf") if number % 2 == 0 else ("aiperf", "loadgen"):
                if name == "loadgen":
                    found = await asyncio.to_thread(by_loadgen, url, *load)
                else:
                    found = await asyncio.to_thread(by_aiperf, options.peer, url, *load)
                rounds[name].append(found)
                truths[name].append(truth.told())
                told = f"TTFT {found['mean_ttft_ms']:.1f} ms, TPOT {found['mean_tpot_ms']:.2f} ms"
                print(f"round {number + 1}: {name}: {told}, {found['output_throughput']:.1f} tokens/s", flush=True)
    return show(rounds, truths)


def ratios(above: Sequence[Measured], below: Sequence[Measured], name: str) -> list[float]:
    """Of a figure, within each round; empty if one side has it not."""
    return sorted(a[name] / b[name] for a, b in zip(above, below, strict=True) if name in b)


def show(rounds: dict[str, list[Measured]], truths: dict[str, list[Measured]]) -> bool:
    """A line for each figure: medians over the rounds, the ratio, and each side's to the truth where that is known.

    Whether the two agree is judged by the last where it is known: a server is not as fast in every round.
    """
    print(f"\n{'':22}{'loadgen':>10} {'aiperf':>10}  {'loadgen / aiperf (least to most)':36}{'each / true':18}")
    agreed = True
    for name in FIGURES:
        found = ratios(rounds["loadgen"], rounds["aiperf"], name)
        ratio = statistics.median(found)
        ours, theirs = (statistics.median(one[name] for one in side) for side in rounds.values())
        held = [ratios(side, truth, name) for side, truth in zip(rounds.values(), truths.values(), strict=True)]
        true = [statistics.median(one) for one in held if one]
        kept = abs((true[0] / true[1] if true else ratio) - 1) <= LIMIT
        agreed = agreed and (kept or name not in JUDGED)
        spread = f"{ratio:.3f} ({found[0]:.3f} to {found[-1]:.3f})"
        told = " ".join(f"{one:8.3f}" for one in true)
        verdict = "" if name not in JUDGED else ("ok" if kept else "DIFFERS")
        print(f"{name:22}{ours:10.2f} {theirs:10.2f}  {spread:36}{told:18} {verdict}")
    return agreed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, default=PEER, help=f"AIPerf's program (default: {PEER})")
    parser.add_argument("--url", help="a server that is there (default: an engine of its own)")
    parser.add_argument("--model", default=MODEL, help=f"what to ask for (default: {MODEL})")
    parser.add_argument("--golden", action="store_true", help="ask a golden server")
    parser.add_argument("--rounds", type=int, default=4, help="of each (default: 4)")
    parser.add_argument("--requests", type=int, default=40, help="in a round (default: 40)")
    parser.add_argument("--concurrency", type=int, default=4, help="requests in flight (default: 4)")
    parser.add_argument("--rate", type=float, help="requests/s, evenly, instead of a concurrency")
    parser.add_argument("--words", type=int, default=100, help="of the shortest prompt (default: 100)")
    parser.add_argument("--tokens", type=int, default=48, help="of every answer (default: 48)")
    options = parser.parse_args(arguments)
    if not options.peer.exists():
        parser.error(f"--peer {options.peer}: is not there; install it as said above")
    return 0 if asyncio.run(compare(options)) else 1


if __name__ == "__main__":
    sys.exit(main())
