"""The plain verdict claims what the repeats show, of each class of prompts, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from simulated_runs import write_run

from loadgen.experiments.compare import THROUGHPUT, Repeat, comparison, read_repeat, tail_verdicts, verdicts
from loadgen.experiments.tails import plain_verdict, split_of, tail_table
from loadgen.settings import Settings

NAMES = ("colocated", "separated")
SPLIT = Settings(file="t.jsonl", split_prompt_tokens=100)


def measured(
    folder: Path, repeats: int, *, token: float = 1.0, first: float = 1.0, split: bool = True, noise: float = 0.02
) -> list[Repeat]:
    """Repeats of a side and one whose gaps and first tokens take so many times as long."""
    told = []
    for number in range(repeats):
        common = {"long_every": 4, "rate": 0.5, "noise": noise}
        settings = SPLIT if split else Settings(file="t.jsonl")
        a = write_run(folder / f"a{number}", settings, seed=number, **common)  # type: ignore[arg-type]
        b = write_run(
            folder / f"b{number}",
            settings,
            seed=100 + number,
            token_seconds=0.02 * token,
            prefill_seconds=0.1 * first,
            **common,  # type: ignore[arg-type]
        )
        told.append(read_repeat(a, b))
    return told


def test_of_throughput_there_is_one_verdict(tmp_path: Path) -> None:
    repeats = measured(tmp_path, 4, token=0.9)
    (throughput,) = (verdict for verdict in verdicts(repeats) if verdict.figure == THROUGHPUT.name)
    assert tail_verdicts(repeats)[-1] == throughput


def test_what_is_shown_is_bought_at_a_price(tmp_path: Path) -> None:
    *verdicts, throughput = tail_verdicts(measured(tmp_path, 6, token=0.3, first=2.0))
    unshown = replace(throughput, low=-0.1, high=0.1, differs=False)
    price = "at the price of TTFT tails of short prompts and TTFT tails of long prompts."
    bought = plain_verdict([*verdicts, throughput], NAMES)
    assert bought.endswith(f"it buys ITL tails of short prompts and throughput, {price}")
    said = plain_verdict([*verdicts, unshown], NAMES)
    assert said.startswith("separated: ITL of short prompts, p99, 0.3")
    assert " of colocated's (" in said
    assert "TTFT of short prompts, p90, " in said
    assert " times colocated's (" in said
    assert said.endswith(f"it buys ITL tails of short prompts, a difference in throughput is not shown, {price}")
    assert "output tokens/s: a difference is not shown" in said


def test_equal_sides_buy_nothing(tmp_path: Path) -> None:
    said = plain_verdict(tail_verdicts(measured(tmp_path, 6)), NAMES)
    assert said.endswith(": no gain is shown.")
    assert said.count("a difference is not shown") == 4


def test_intervals_that_overlap_show_nothing(tmp_path: Path) -> None:
    """Three repeats that scatter: gaps seem to be shorter, and that may be chance."""
    verdicts = tail_verdicts(measured(tmp_path, 3, token=0.9, noise=0.4))
    assert not any(verdict.differs for verdict in verdicts)
    assert plain_verdict(verdicts, NAMES).endswith(": no gain is shown.")


def test_too_few_repeats_show_nothing(tmp_path: Path) -> None:
    said = plain_verdict(tail_verdicts(measured(tmp_path, 2, token=0.3)), NAMES)
    assert said.endswith(": nothing is shown by fewer than 3 whole repeats.")


def test_a_percentile_of_a_few_values_shows_nothing(tmp_path: Path) -> None:
    """40 requests, 10 of them long: a p90 of these is one value's, and of 4 it would be the greatest."""
    repeats = measured(tmp_path, 6, token=0.3, first=2.0)
    (whole,) = [one for one in tail_verdicts(repeats) if one.title == "TTFT of long prompts, p90"]
    assert (whole.differs, whole.few_values) == (True, None)
    repeats[2].b["classes"]["of"]["long"]["count_ttft_scheduled"] = 4
    verdicts = tail_verdicts(repeats)
    (few,) = [one for one in verdicts if one.title == "TTFT of long prompts, p90"]
    assert (few.differs, few.low, few.few_values) == (None, None, 4)
    assert few.untold == "a run has 4 of the 10 values that it takes"
    said = plain_verdict(verdicts, NAMES)
    assert "not shown by 4 values where 10 are needed" in said
    assert said.endswith("at the price of TTFT tails of short prompts.")


def test_failures_are_told_beside_the_tails(tmp_path: Path) -> None:
    said = plain_verdict(tail_verdicts(measured(tmp_path, 3)), NAMES, (0, 7))
    assert "Requests failed, 0 with colocated and 7 with separated: " in said


def test_a_reason_that_is_not_the_number_of_repeats_is_not_said_to_be(tmp_path: Path) -> None:
    verdicts = [replace(one, change=None, low=None, high=None, differs=None, untold="a side has none")
                for one in tail_verdicts(measured(tmp_path, 3)) if one.differs is not None]  # fmt: skip
    assert plain_verdict(verdicts, NAMES).endswith("not told, a side has none: nothing is shown.")
    assert plain_verdict([], NAMES) == "separated: nothing was measured that both sides have."


def test_a_row_for_each_percentile_of_each_class(tmp_path: Path) -> None:
    repeats = measured(tmp_path, 3, token=0.5)
    verdicts = tail_verdicts(repeats)
    table = tail_table(verdicts, split_of(repeats[0].a))
    rows = {row[0]: row[1:] for row in table.rows}
    assert len(rows) == 2 * 2 * 4 + 1
    decided = {title for title, cells in rows.items() if cells[3] != "-"}
    assert decided == {
        "output tokens/s",
        "ITL of short prompts, p99 (ms)",
        "TTFT of short prompts, p90 (ms)",
        "TTFT of long prompts, p90 (ms)",
    }
    a, b, ratio, _, differs = rows["ITL of short prompts, p99 (ms)"]
    assert float(b) / float(a) == pytest.approx(0.5, rel=0.1) == float(ratio)
    assert differs == "yes"
    assert table.caption[-1] == "short: prompts of up to 100 tokens; long: all others."


def test_without_classes_the_tails_are_of_all_prompts(tmp_path: Path) -> None:
    repeats = measured(tmp_path, 4, token=0.3, split=False)
    document = comparison(repeats, "")
    assert [one["title"] for one in document["tails"]][:2] == ["ITL, p50", "ITL, p90"]
    assert plain_verdict(tail_verdicts(repeats), NAMES).startswith("separated: ITL, p99, 0.3")
    assert split_of(document["a"]) is None
