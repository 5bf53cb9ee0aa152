"""Everything about a GPU in one run: `python -m benchmarks.gpu [--json FILE] [--results FOLDER] [--skip-engine]`.

Checks attention against float64 on fresh random inputs, and that graphs draw the tokens of single launches; measures
decode as a fraction of a copy within the card, prefill as a fraction of torch's flash attention, and the engine on the
burst of `benchmarks.compare` (64 requests of 256 tokens in and 64 out), with graphs and without. Writes what it found,
with the card's name and the date, into `benchmarks/results/`. Exits 1 if a check fails, 2 without a GPU.

What an H200 should give (none has been measured yet). Its memory does 4.8 TB/s on paper and about 4.2 in a copy. A
decode of 64 sequences at context 4,096 reads 64 x 4,096 x 2 x 8 x 128 x 2 bytes = 1.07 GB: 256 us at a copy's rate.
Its 512 programs are one wave of 4 on each of 132 multiprocessors, each with 32 KiB on their way, where Little's law
asks for about 36 KiB (4.8 TB/s x 1 us / 132); launches are some us, so 0.9 or more. One sequence at 32,768 reads 134
MB: 32 us, of which starting, the last wave and the merge of 64 splits take some 4 to 6 us: 0.8 to 0.88. float8 halves
the bytes and keeps the fixed costs, and takes registers for 3 programs on each, so that 512 are 1.3 waves: 0.7 to 0.8,
and 0.6 to 0.7. Prefill of 8,192 tokens is 4 x 32 x 128 x 8,192^2 / 2 = 550 GFLOP: 1.4 ms at the 400 TFLOP/s of flash
attention 2; keys are gathered by cp.async instead of TMA, in tiles of 128 x 64 on wgmma, for which 250 to 320 TFLOP/s
are usual: 0.6 to 0.8. A burst of SmolLM2 is bound by launches: 64 decode steps of some 300 launches are 1.5 ms each
without graphs and about 0.5 with them.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

import msgspec
import torch

from benchmarks.gpu_kernels import Check, Figure, all_checks, all_figures, copy_rate
from benchmarks.messages import Do, Run, Settings
from benchmarks.options import check_file
from benchmarks.peers.offline import Offline
from benchmarks.works import make_work
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.loading.weights import Weights
from engine.model import Decoder
from engine.plan import FixedRequest, PlannedRow
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams

RESULTS = Path(__file__).with_name("results")
NO_GPU = "benchmarks.gpu needs a GPU that torch can use, and sees none; on this machine run the tests instead"


class EngineRun(msgspec.Struct, frozen=True):
    """A burst through the engine: the median of some runs."""

    name: str
    output_tokens_per_second: float
    durations: dict[str, float]


class Report(msgspec.Struct, frozen=True):
    card: str
    date: str
    torch: str
    triton: str
    copy_rate: float  # bytes per second, read and written
    checks: list[Check]
    figures: list[Figure]
    engine: list[EngineRun]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def check_graphs(device: torch.device) -> Check:
    """The share of tokens that a decoder draws otherwise with graphs than without, over some decode steps."""
    resolved = resolve_model("tiny")
    drawn: list[list[int]] = []
    for with_graphs in (False, True):
        model = Decoder(resolved.config, Weights(resolved.folder, torch.float32, device), 256)
        runner = ModelRunner(model, Sampler(resolved.eos_token_ids), 64, 16)
        if not with_graphs:
            runner.graphs = None
        histories = [[(i * 7 + j) % 250 for j in range(3 * i + 1)] for i in range(11)]
        greedy = SamplingParams(max_tokens=30, temperature=0.0)
        for step in range(20):
            rows = []
            for i, tokens in enumerate(histories):
                start = 0 if step == 0 else len(tokens) - 1
                request = FixedRequest(str(i), list(tokens), 3 * i + 1, range(5 * i, 5 * i + 5), greedy)
                rows.append(PlannedRow(request, "decode" if step else "prefill", start, len(tokens) - start, True))
            sampled = runner.compute(rows).sampled
            for i, tokens in enumerate(histories):
                tokens.append(sampled[str(i)].token_id)
        drawn.append([token for tokens in histories for token in tokens])
    wrong = sum(one != other for one, other in zip(*drawn, strict=True))
    return Check("graphs against single launches, tiny, float32", wrong / len(drawn[0]), 0.0)


def run_engine(model: str, runs: int) -> list[EngineRun]:
    """The burst, in turns with graphs and without."""
    settings = Settings(model, "bfloat16", 8 * 1024**3, 8192)
    engine = Offline(settings)
    runner = engine.core.runner
    if not isinstance(runner, ModelRunner) or runner.graphs is None:
        raise RuntimeError("the engine found no Triton, so it has no graphs")
    found: dict[str, list[Run]] = {"with graphs": [], "without": []}
    graphs, vocabulary = runner.graphs, runner.model.config.vocab_size
    for turn in range(runs + 1):  # the first compiles and captures
        for name, runs_so_far in found.items():
            runner.graphs = graphs if name == "with graphs" else None
            run = engine.run(Do(make_work("burst", str(turn), vocabulary)), lambda _: None)
            if turn:
                runs_so_far.append(run)
    return [_median(f"burst of {model}, {name}", runs_found) for name, runs_found in found.items()]


def _median(name: str, runs: list[Run]) -> EngineRun:
    middle = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
    return EngineRun(name, middle.output_rate, middle.durations)


def markdown(report: Report) -> str:
    """What a person reads, and what is kept."""
    lines = [f"# {report.card}, {report.date}", "", f"torch {report.torch}, Triton {report.triton}.", ""]
    lines += [f"A copy within the card reads and writes {report.copy_rate / 1e9:,.0f} GB/s.", ""]
    if report.figures:
        lines += ["| kernel | time | rate | share | aim |", "| --- | --- | --- | --- | --- |"]
    for figure in report.figures:
        rate = f"{figure.rate / 1e12:.2f} T{'FLOP' if 'prefill' in figure.name else 'B'}/s"
        lines.append(f"| {figure.name} | {figure.seconds * 1e6:,.1f} us | {rate} | {figure.share:.2f} | {figure.aim} |")
    if report.engine:
        lines += ["", "| engine | output tokens/s | forward | sample |", "| --- | --- | --- | --- |"]
    for run in report.engine:
        forward, sample = (run.durations.get(part, 0.0) for part in ("forward", "sample"))
        lines.append(f"| {run.name} | {run.output_tokens_per_second:,.0f} | {forward:.2f} s | {sample:.2f} s |")
    lines += ["", "| check against float64 | largest error | allowed |", "| --- | --- | --- |"]
    for check in report.checks:
        mark = "" if check.passed else " (FAILED)"
        lines.append(f"| {check.name}{mark} | {check.error:.1e} | {check.allowed:.1e} |")
    return "\n".join(lines) + "\n"


def result_file(folder: Path, report: Report) -> Path:
    card = "-".join("".join(c if c.isalnum() else " " for c in report.card.lower()).split())
    return folder / f"{report.date}-gpu-{card}.md"


def keep(report: Report, folder: Path, json: Path | None) -> None:
    """Write what is known so far."""
    folder.mkdir(parents=True, exist_ok=True)
    result_file(folder, report).write_text(markdown(report), encoding="utf-8")
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON too")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where the table is kept")
    parser.add_argument("--model", default="smollm2-135m", help="of the burst (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="of the burst (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the checks' inputs (default: another each time)")
    parser.add_argument("--skip-engine", action="store_true", help="kernels alone")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    check_file(parser, "--json", arguments.json)
    if not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    import triton

    seed = arguments.seed if arguments.seed is not None else int(torch.seed() % 2**31)
    try:
        resolve_model(arguments.model)
    except ModelError as error:
        parser.error(f"--model: {error}")
    print(f"checks with --seed {seed}", flush=True)
    device = torch.device("cuda")
    checks = all_checks(device, seed)
    copied = copy_rate()
    report = Report(
        card=torch.cuda.get_device_name(),
        date=datetime.date.today().isoformat(),
        torch=str(torch.__version__),  # a string of a kind that msgspec refuses
        triton=triton.__version__,
        copy_rate=copied,
        checks=checks,
        figures=all_figures(copied),
        engine=[],
    )
    keep(report, arguments.results, arguments.json)
    if not arguments.skip_engine:  # a fault in a graph ends the process: what is known is kept before
        report = msgspec.structs.replace(report, checks=[*checks, check_graphs(device)])
        report = msgspec.structs.replace(report, engine=run_engine(arguments.model, arguments.runs))
        keep(report, arguments.results, arguments.json)
    print(markdown(report))
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
