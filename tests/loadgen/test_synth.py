"""traces/chat500.jsonl is what its README says, down to the byte and the token."""

from __future__ import annotations

import csv
import datetime
import json
import os
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
from msgspec import UNSET

from loadgen import synth, words
from loadgen.traces.chat import trace_lines
from loadgen.traces.formats import open_trace
from loadgen.traces.model import Header, Session, TraceError, Turn, turn_inputs

ROOT = Path(__file__).resolve().parents[2]
CHAT500 = ROOT / "traces" / "chat500.jsonl"
AZURE = ROOT.parent / "shared" / "traces" / "AzureLLMInferenceTrace_conv.csv"
PERCENTS = (10, 25, 50, 75, 90)
needs_azure = pytest.mark.skipif(not AZURE.exists(), reason=f"the full trace is not at {AZURE}")


@dataclass(frozen=True)
class Trace:
    """A whole one, in memory."""

    header: Header
    sessions: tuple[Session, ...]


@pytest.fixture(scope="module")
def chat500() -> Trace:
    file = open_trace(CHAT500)
    return Trace(file.header, tuple(file.sessions()))


def turns_of(trace: Trace) -> list[Turn]:
    return [turn for session in trace.sessions for turn in session.turns]


def quantile(values: list[float], percent: int) -> float:
    return sorted(values)[round(percent / 100 * (len(values) - 1))]


def test_bit_for_bit() -> None:
    excerpt = synth.read_excerpt(synth.DEFAULT_EXCERPT)
    header, sessions = synth.synthesize(excerpt, synth.DEFAULT_SESSIONS, synth.DEFAULT_SEED)
    assert b"".join(trace_lines(header, sessions)) == CHAT500.read_bytes()


def test_another_seed_makes_another_trace() -> None:
    excerpt = synth.read_excerpt(synth.DEFAULT_EXCERPT)
    _, one = synth.synthesize(excerpt, 20, 1)
    assert synth.synthesize(excerpt, 20, 1)[1] == one != synth.synthesize(excerpt, 20, 2)[1]
    assert synth.synthesize(excerpt, 10, 1)[1] == one[:10]  # fewer sessions: the same ones


def test_schema_holds_for_every_line() -> None:
    schema = json.loads((ROOT / "traces" / "chat.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for line in CHAT500.read_text().splitlines():
        validator.validate(json.loads(line))
    assert not validator.is_valid({"session": "s", "arrival": -1, "system": "main", "turns": []})


def test_shape(chat500: Trace) -> None:
    assert len(chat500.sessions) == 500
    assert {session.system for session in chat500.sessions} == {"main"} == set(chat500.header.systems)
    assert set(Counter(len(session.turns) for session in chat500.sessions)) == {1, 2, 3, 4}
    turns = turns_of(chat500)
    regenerated = [turn for turn in turns if turn.regenerates is not UNSET]
    assert 1000 <= len(turns) <= 1200
    assert len(regenerated) >= 50
    assert len({turn.seed for turn in turns}) > 1120
    assert len({turn.user for turn in turns if turn.user is not UNSET}) > 1000  # sessions diverge
    assert 50 * 60 <= (chat500.sessions[-1].arrival or 0) <= 60 * 60
    assert 12 <= quantile([turn.think for turn in turns if turn.think and turn.regenerates is UNSET], 50) <= 18


def test_a_turn_after_a_regenerated_one_goes_on_from_it(chat500: Trace) -> None:
    seen = 0
    for session in chat500.sessions:
        for index, turn in enumerate(session.turns[:-1]):
            after = session.turns[index + 1]
            if turn.regenerates is not UNSET and after.regenerates is UNSET:
                history = turn_inputs(session)[index + 1].history
                assert history[-1] == index
                assert turn.regenerates not in history
                seen += 1
    assert seen > 10


def session_tokens(trace: Trace) -> list[int]:
    """System prompt and all turns with the template's tokens around each message."""
    totals = []
    for session in trace.sessions:
        users = [0 if turn.user_tokens is UNSET else turn.user_tokens for turn in session.turns]
        answers = [turn.output_tokens for turn in session.turns]
        messages = 1 + 2 * len(session.turns)
        totals.append(synth.SYSTEM_TOKENS + messages * synth.MESSAGE_OVERHEAD + sum(users) + sum(answers))
    return totals


def test_no_session_passes_4096_tokens(chat500: Trace) -> None:
    assert max(session_tokens(chat500)) <= 4096


def test_a_session_ends_before_it_gets_too_long() -> None:
    long = synth.Excerpt(lengths=((9000, 900),), gaps=(1,))
    header, sessions = synth.synthesize(long, 40, 3)
    totals = session_tokens(Trace(header, tuple(sessions)))
    assert max(totals) <= synth.SESSION_LIMIT
    assert {len(session.turns) for session in sessions} == {1, 2}


def test_lengths_and_gaps_follow_the_excerpt(chat500: Trace) -> None:
    excerpt = synth.read_excerpt(synth.DEFAULT_EXCERPT)
    turns = turns_of(chat500)
    users = [float(turn.user_tokens) for turn in turns if turn.user_tokens is not UNSET]
    answers = [float(turn.output_tokens) for turn in turns]
    arrivals = [session.arrival for session in chat500.sessions]
    gaps = [b - a for a, b in pairwise(arrivals)]
    for percent in PERCENTS:
        context = quantile([c for c, _ in excerpt.lengths], percent) / synth.CONTEXT_DIVISOR
        generated = quantile([g for _, g in excerpt.lengths], percent) / synth.ANSWER_DIVISOR
        gap = quantile(list(map(float, excerpt.gaps)), percent) / 1e7 * synth.GAP_FACTOR
        assert quantile(users, percent) == pytest.approx(context, rel=0.06, abs=2)
        assert quantile(answers, percent) == pytest.approx(generated, rel=0.06, abs=2)
        assert quantile(gaps, percent) == pytest.approx(gap, rel=0.15, abs=0.2)


def azure_rows() -> list[list[str]]:
    with AZURE.open(newline="") as file:
        return [[cell.strip() for cell in row] for row in csv.reader(file)][1:]


def ticks(text: str) -> int:
    whole, fraction = text.split(".")
    moment = datetime.datetime.fromisoformat(f"{whole}+00:00")
    return int(moment.timestamp()) * 10**7 + int(fraction.ljust(7, "0"))


@needs_azure
def test_the_excerpt_is_every_101st_record_of_the_full_trace() -> None:
    rows = azure_rows()
    with synth.DEFAULT_EXCERPT.open(newline="") as file:
        excerpt = list(csv.DictReader(file))
    assert len(excerpt) == 190
    for number, row in enumerate(excerpt):
        index = 27 + 101 * number
        assert [row["TIMESTAMP"], row["ContextTokens"], row["GeneratedTokens"]] == rows[index]
        assert int(row["Record"]) == index
        assert round(float(row["Gap"]) * 10**7) == ticks(rows[index][0]) - ticks(rows[index - 1][0])


@needs_azure
@pytest.mark.parametrize("column", ["context", "generated", "gap"])
def test_the_excerpts_quantiles_follow_the_full_trace(column: str) -> None:
    rows = azure_rows()
    excerpt = synth.read_excerpt(synth.DEFAULT_EXCERPT)
    times = [ticks(row[0]) for row in rows]
    ours, full = {
        "context": ([c for c, _ in excerpt.lengths], [int(row[1]) for row in rows]),
        "generated": ([g for _, g in excerpt.lengths], [int(row[2]) for row in rows]),
        "gap": (list(excerpt.gaps), [b - a for a, b in pairwise(times)]),
    }[column]
    for percent in PERCENTS:
        expected = quantile(list(map(float, full)), percent)
        assert quantile(list(map(float, ours)), percent) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "line 1: no column ContextTokens"),
        (
            "ContextTokens,GeneratedTokens,Gap\n1,2,0.5\n1,x,0.5\n",
            "line 3: GeneratedTokens: expected a number, got 'x'",
        ),
        ("ContextTokens,GeneratedTokens,Gap\n1,2,-1\n", "line 2: Gap: must be at least 0"),
        ("ContextTokens,GeneratedTokens,Gap\n1,2,nan\n", "line 2: Gap: must be at least 0"),
        ("ContextTokens,GeneratedTokens,Gap\n1,2\n", "line 2: Gap: expected a number, got None"),
        ("ContextTokens,GeneratedTokens,Gap\n", "has no records"),
    ],
)
def test_bad_excerpt(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "excerpt.csv"
    path.write_text(content)
    with pytest.raises(TraceError, match=r"excerpt\.csv") as caught:
        synth.read_excerpt(path)
    assert message in str(caught.value)


def find_tokenizer() -> Path | None:
    cache = Path(os.environ.get("PAGED_TOP_CACHE") or Path.home() / ".cache" / "paged-top")
    found = sorted(cache.glob("models/*mol*/**/tokenizer.json"))
    return found[0] if found else None


@pytest.mark.model
def test_all_counts_are_the_tokenizers(chat500: Trace) -> None:
    path = find_tokenizer()
    if path is None:
        pytest.skip("SmolLM2 has not been converted to the model cache yet")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    assert count(chat500.header.systems["main"]) == 1000
    for session in chat500.sessions:
        for turn in session.turns:
            if turn.user is not UNSET:
                assert count(turn.user) == turn.user_tokens, (session.session, turn.user)
                around = f"<|im_start|>user\n{turn.user}<|im_end|>\n"
                assert count(around) == turn.user_tokens + synth.MESSAGE_OVERHEAD
    for lists in (words.SHARED.values(), *((s.thing, s.things, s.do, s.quality, s.place) for s in words.SUBJECTS)):
        for entries in lists:
            for word in entries:
                assert count(f" {word}") == 1, word
