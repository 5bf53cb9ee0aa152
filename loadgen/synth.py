"""Make traces/chat500.jsonl: lengths and gaps from an excerpt of a real trace, text from a seeded generator.

Every factor is stated in traces/README.md. The same excerpt and seed give the same bytes.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadgen import prose, words
from loadgen.traces.chat import trace_lines
from loadgen.traces.model import FORMAT, Header, Session, TraceError, Turn

DEFAULT_EXCERPT = Path(__file__).resolve().parent.parent / "traces" / "azure_conv_excerpt.csv"
DEFAULT_SESSIONS = 500
DEFAULT_SEED = 500

CONTEXT_DIVISOR = 8  # user message tokens = context tokens / 8, at least MIN_USER
ANSWER_DIVISOR = 3  # answer tokens = generated tokens / 3, at least MIN_ANSWER
MIN_USER = 8
MIN_ANSWER = 4
GAP_FACTOR = 36  # of the time between two arrivals
TURN_WEIGHTS = {1: 32, 2: 30, 3: 23, 4: 15}  # turns of a session, regenerated ones included
REGENERATE_PERCENT = 12  # of the turns after a session's first
THINK_MEDIAN = 15.0  # seconds, log-normal
THINK_SIGMA = 0.7
THINK_RANGE = (2.0, 120.0)
REGENERATE_THINK = (1.0, 8.0)  # who asks for another answer does not write first
TEMPERATURE = 0.7

SYSTEM_TOKENS = 1000
MESSAGE_OVERHEAD = 5  # the chat template's tokens around a message
SESSION_LIMIT = 4000  # tokens of system prompt and all turns; 96 short of 4,096, as an answer's text may
# be split into slightly more tokens when it comes back as history

_TICKS = 10_000_000  # the excerpt's times have seven fractional digits


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Records of the real trace: (context tokens, generated tokens), and gaps to the record before in 100 ns."""

    lengths: tuple[tuple[int, int], ...]
    gaps: tuple[int, ...]


def system_prompt() -> str:
    """The operator's prompt that all sessions share: exactly `SYSTEM_TOKENS` tokens."""
    return (Path(__file__).with_name("system_prompt.txt")).read_text(encoding="utf-8").rstrip("\n")


def read_excerpt(path: Path) -> Excerpt:
    """Read the excerpt. Raises `TraceError` naming the line and column."""
    columns = ("ContextTokens", "GeneratedTokens", "Gap")
    lengths: list[tuple[int, int]] = []
    gaps: list[int] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}: line 1: no column {missing[0]}; needed are {', '.join(columns)}")
            for row in reader:
                where = f"{path}: line {reader.line_num}"
                numbers = []
                for name in columns:
                    try:
                        value = float(row[name])
                    except (TypeError, ValueError):
                        raise TraceError(f"{where}: {name}: expected a number, got {row[name]!r}") from None
                    if not 0 <= value < 1e9:
                        raise TraceError(f"{where}: {name}: must be at least 0 and below 1e9, got {row[name]}")
                    numbers.append(value)
                lengths.append((int(numbers[0]), int(numbers[1])))
                gaps.append(round(numbers[2] * _TICKS))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    if not lengths:
        raise TraceError(f"{path}: has no records")
    return Excerpt(tuple(lengths), tuple(gaps))


def _rounds(items: tuple[Any, ...], rng: random.Random) -> Iterator[Any]:
    """Shuffled rounds over the items without end: each is used equally often, so the quantiles stay."""
    while True:
        order = list(items)
        rng.shuffle(order)
        yield from order


def _turns(lengths: Iterator[tuple[int, int]], rng: random.Random) -> Iterator[Turn]:
    subject = rng.choice(words.SUBJECTS)
    count = rng.choices(list(TURN_WEIGHTS), list(TURN_WEIGHTS.values()))[0]
    total = SYSTEM_TOKENS + MESSAGE_OVERHEAD
    last_user_tokens = 0
    for index in range(count):
        context, generated = next(lengths)
        regenerates = index > 0 and rng.randrange(100) < REGENERATE_PERCENT
        user_tokens = last_user_tokens if regenerates else max(MIN_USER, round(context / CONTEXT_DIVISOR))
        output_tokens = max(MIN_ANSWER, round(generated / ANSWER_DIVISOR))
        total += user_tokens + output_tokens + 2 * MESSAGE_OVERHEAD
        if total > SESSION_LIMIT and index > 0:
            return
        last_user_tokens = user_tokens
        seed = rng.randrange(2**31)
        if regenerates:
            think = round(rng.uniform(*REGENERATE_THINK), 1)
            yield Turn(think=think, regenerates=index - 1, output_tokens=output_tokens, seed=seed)
            continue
        text = prose.message(subject, user_tokens, rng, follow_up=index > 0)
        turn = Turn(user=text, user_tokens=user_tokens, output_tokens=output_tokens, seed=seed)
        if index > 0:
            think = THINK_MEDIAN * rng.lognormvariate(0.0, THINK_SIGMA)
            think = round(min(max(think, THINK_RANGE[0]), THINK_RANGE[1]), 1)
            turn = msgspec.structs.replace(turn, think=think)
        yield turn


def synthesize(excerpt: Excerpt, sessions: int, seed: int) -> tuple[Header, list[Session]]:
    """Make a trace; arrivals start at 0 and are rounded to milliseconds."""
    lengths = _rounds(excerpt.lengths, random.Random(f"{seed}/lengths"))
    gaps = _rounds(excerpt.gaps, random.Random(f"{seed}/gaps"))
    made: list[Session] = []
    ticks = 0
    for number in range(1, sessions + 1):
        rng = random.Random(f"{seed}/session/{number}")
        arrival = ticks * GAP_FACTOR // (_TICKS // 1000) / 1000
        made.append(
            Session(session=f"s{number:04d}", arrival=arrival, system="main", turns=tuple(_turns(lengths, rng)))
        )
        ticks += next(gaps)
    recipe: dict[str, str | int | float] = {
        "made_by": "loadgen synth",
        "source": "AzureLLMInferenceTrace_conv.csv, Azure/AzurePublicDataset, CC-BY-4.0 (excerpt)",
        "seed": seed,
        "sessions": sessions,
    }
    header = Header(FORMAT, 1, {"main": system_prompt()}, TEMPERATURE, recipe)
    return header, made


def write_trace(header: Header, sessions: Iterable[Session], path: Path) -> None:
    """Write a trace file. Raises `OSError`."""
    with path.open("wb") as file:
        file.writelines(trace_lines(header, sessions))
