"""Each suggestion arises in a load that has its problem, and applying it improves the figure that it names.

The loads run on the engine's own core over a runner that only counts, with a clock of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.core import EngineCore, check_control
from engine.plan import Sampled, StepResult
from engine.protocol import Control, Durations, EngineInfo
from engine.sampling_params import SamplingParams
from tui import advice
from tui.advice import MOST, advise
from tui.feed import Feed
from tui.history import Window, quantile, step_seconds
from tui.view import View


@dataclass(frozen=True)
class Load:
    """Requests that arrive at `rate` a second with a prompt (`shared` tokens in common) and an answer of some length;
    steps that take `base` seconds and `token` more for each token."""

    rate: float
    prompt: tuple[int, int] = (20, 300)
    answer: tuple[int, int] = (8, 200)
    shared: int = 0
    blocks: int = 1456
    host_blocks: int = 0
    max_model_len: int = 4096
    base: float = 0.05
    token: float = 0.0002
    move: float = 0.0004  # of one block, to host memory or back

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            "m", "float32", "cpu", 16, self.blocks, 23_040, self.max_model_len, "0", num_host_blocks=self.host_blocks
        )


def run(load: Load, control: Control, seconds: float, switches: dict[float, dict[str, Any]] | None = None) -> Feed:
    """What a screen has seen of a load for `seconds`, with changes of control at some of them."""
    chance, now = random.Random(5), 1000.0
    pending = sorted((switches or {}).items())

    class Runner:
        def move(self, plan):
            nonlocal now
            transfer = load.move * plan.num_moves
            now += transfer
            return transfer

        def compute(self, rows):
            nonlocal now
            spent = load.base + load.token * sum(row.count for row in rows)
            now += spent
            sampled = {draw.request_id: Sampled(7) for row in rows for draw in row.draws}
            return StepResult(sampled, 0.0, spent, 0.0)

    core = EngineCore(Runner(), load.info, control, clock=lambda: now)
    feed = Feed(None, lambda: 0.0)
    feed._read(msgspec.structs.replace(core.snapshot(), time=now))
    feed._enter("live")
    common, arrival, count = [chance.randrange(1000) for _ in range(load.shared)], now, 0
    while now < 1000.0 + seconds:
        while arrival <= now:
            prompt = common + [chance.randrange(1000) for _ in range(chance.randint(*load.prompt))]
            core.add(f"r{count}", prompt, SamplingParams(max_tokens=chance.randint(*load.answer)))
            count, arrival = count + 1, arrival + chance.expovariate(load.rate)
        if pending and now >= 1000.0 + pending[0][0]:
            core.set_control(msgspec.structs.replace(core.scheduler.control, **pending.pop(0)[1]))
        _, record = core.step()
        if record is None:
            now = max(now + 0.01, arrival)
            continue
        spent = record.durations
        feed._take(
            msgspec.structs.replace(record, durations=Durations(0.0, 0.0, spent.forward, 0.0, 0.0, spent.transfer))
        )
    return feed


def view_of(feed: Feed) -> View:
    view = feed.view()
    assert view is not None
    return view


def last(feed: Feed, seconds: float = 12.0) -> Window:
    view = view_of(feed)
    return view.history.window(view.now - seconds, view.now)


def half_ttft(feed: Feed) -> float:
    found = quantile(last(feed).ttft, 0.5)
    assert found is not None
    return found


def seconds_a_token(feed: Feed) -> float:
    window = last(feed)
    return window.observed / window.output_tokens


def waste(feed: Feed) -> float:
    return last(feed).internal_share or 0.0


def held_rows(feed: Feed) -> float:
    return sum(cell.kind == "held" for step in view_of(feed).steps[-100:] for cell in step.cells.values())


def lost_tokens(feed: Feed) -> float:
    return sum(preempted.lost_tokens for preempted in last(feed).preempted)


def preempting_seconds(feed: Feed) -> float:
    window = last(feed)
    again = sum(preempted.recompute_seconds or 0.0 for preempted in window.preempted if preempted.by == "recompute")
    return window.transfer_seconds + again


def prefill_step(feed: Feed) -> float:
    steps = [step for step in view_of(feed).steps[-200:] if step.tokens > len(step.cells)]
    return sum(step_seconds(step.durations) for step in steps) / len(steps)


GROWING = Load(3, (16, 40), (300, 600), blocks=300, base=0.02)
CASES: dict[str, tuple[Load, Control, dict[str, Any], Callable[[Feed], float]]] = {
    "page": (Load(4, shared=300), Control(allocation="reserved"), {"allocation": "paged"}, waste),
    "join": (Load(3), Control(batching="static"), {"batching": "continuous"}, held_rows),
    "fewer rows": (GROWING, Control(prefix_cache=False), {"max_num_seqs": 18}, lost_tokens),
    "no swap": (
        Load(3, (16, 40), (300, 600), blocks=300, host_blocks=2000, base=0.02, move=0.01),
        Control(prefix_cache=False, preempt="swap"),
        {"preempt": "recompute"},
        preempting_seconds,
    ),
    "more rows": (Load(4), Control(max_num_seqs=4), {"max_num_seqs": 8}, seconds_a_token),
    "chunks": (
        Load(8, (250, 400), (8, 40), blocks=4000, base=0.1, token=0.0001),
        Control(chunked_prefill=False, prefix_cache=False, max_num_seqs=256),
        {"chunked_prefill": True},
        half_ttft,
    ),
    "budget": (
        Load(5, (100, 300), (8, 60), blocks=4000),
        Control(max_num_batched_tokens=64),
        {"max_num_batched_tokens": 128},
        half_ttft,
    ),
    "smaller chunks": (
        Load(0.5, (3000, 3500), (50, 200), blocks=4000),
        Control(prefix_cache=False, max_num_batched_tokens=4096),
        {"max_prefill_chunk": 1024},
        prefill_step,
    ),
    "short first": (
        Load(8, (20, 1500), (8, 60), blocks=300),
        Control(prefix_cache=False, max_num_batched_tokens=2048),
        {"scheduling_policy": "shortest_prefill"},
        half_ttft,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_arises_where_the_problem_is_and_applying_it_helps(case):
    load, control, changes, figure = CASES[case]
    suggestions = advise(view_of(run(load, control, 30.0)))
    assert changes in [suggestion.changes for suggestion in suggestions]
    stayed, changed = run(load, control, 46.0), run(load, control, 46.0, {30.0: changes})
    assert figure(changed) < figure(stayed) * 0.9
    assert changes not in [suggestion.changes for suggestion in advise(view_of(changed))]


def test_a_load_without_a_problem_has_no_advice():
    assert advise(view_of(run(Load(1), Control(), 30.0))) == ()


def test_the_cache_is_suggested_only_where_it_has_found_something():
    shared = Load(2, shared=500)
    off = {20.0: {"prefix_cache": False}}
    (suggestion,) = [s for s in advise(view_of(run(shared, Control(), 60.0, off))) if "prefix_cache" in s.changes]
    assert suggestion.changes == {"prefix_cache": True}
    assert "prompt tokens were found before the cache was switched off" in suggestion.why
    switched_on = {20.0: {"prefix_cache": False}, 40.0: {"prefix_cache": True}}
    assert half_ttft(run(shared, Control(), 60.0, switched_on)) < half_ttft(run(shared, Control(), 60.0, off))
    never_on = advise(view_of(run(shared, Control(prefix_cache=False), 60.0)))
    assert not any("prefix_cache" in s.changes for s in never_on)
    nothing_shared = advise(view_of(run(Load(2), Control(), 60.0, off)))
    assert not any("prefix_cache" in s.changes for s in nothing_shared)


def test_a_few_seconds_are_no_evidence():
    load, control, _, _ = CASES["page"]
    assert advise(view_of(run(load, control, 4.5))) == ()
    assert advise(view_of(run(load, control, 32.0, {30.0: {"max_num_seqs": 63}}))) == ()  # since the switch: two


def test_what_was_undone_or_tried_is_not_suggested_again():
    load, control, changes, _ = CASES["page"]
    undone = {10.0: {"allocation": "paged"}, 16.0: {"allocation": "reserved"}}
    assert changes not in [s.changes for s in advise(view_of(run(load, control, 30.0, undone)))]
    later = view_of(run(load, control, 60.0, undone))
    assert changes in [s.changes for s in advise(later)]
    assert changes not in [s.changes for s in advise(later, tried=({"allocation": "paged"},))]
    assert changes in [s.changes for s in advise(later, tried=({"batching": "static"},))]


def test_nothing_is_said_of_a_moment_that_nobody_saw():
    load, control, changes, _ = CASES["join"]
    feed = run(load, control, 30.0)
    assert changes in [suggestion.changes for suggestion in advise(view_of(feed))]
    assert feed.fold is not None
    later = float(int(feed.fold.time)) + 1.3  # the second's end lies where records are missing
    feed._distrust = True
    feed._read(msgspec.structs.replace(feed.fold.to_snapshot(), seq=feed.fold.seq + 4, time=later))
    assert view_of(feed).history.window(later - 31.3, later - 0.3).queue_length is None
    assert advise(view_of(feed)) == ()


def test_what_is_lost_and_found_again_costs_nothing():
    """With the cache, those that come back find most of what they lost."""
    for cache in (False, True):
        feed = run(GROWING, Control(prefix_cache=cache), 30.0)
        view = view_of(feed)
        window = view.history.window(view.now - 30.0, view.now)
        assert len(window.preempted) > 20
        assert window.recomputed_tokens == pytest.approx(view.counters.recomputed_tokens)
        again = window.recomputed_tokens / window.budget_used
        assert any("computed again" in one.why for one in advise(view)) == (again >= 0.2)


def test_no_more_rows_are_suggested_than_the_pool_holds():
    load = Load(6, (200, 300), (60, 120), blocks=110)
    feed = run(load, Control(max_num_seqs=4), 30.0)
    occupancy = last(feed, 30.0).occupancy
    assert occupancy is not None
    assert 0.5 < occupancy < 0.7
    (rows,) = [s.changes["max_num_seqs"] for s in advise(view_of(feed)) if "max_num_seqs" in s.changes]
    assert 4 < rows < 8
    assert rows / 4 * occupancy <= advice.FULL + 0.01


def test_chunks_shorter_than_any_prompt_are_not_suggested_for_many_short_ones():
    control = Control(prefix_cache=False, max_num_seqs=256)
    feed = run(Load(9, (90, 110), (4, 8), blocks=4000, base=0.005, token=0.001), control, 20.0)
    steps = [step for step in view_of(feed).steps[-200:] if step.tokens > len(step.cells)]
    assert quantile([step.tokens - len(step.cells) for step in steps], 0.5) > 1.2 * 128  # of several prompts at once
    assert not any("max_prefill_chunk" in suggestion.changes for suggestion in advise(view_of(feed)))


def test_within_a_second_it_stays_as_it_is():
    load, control, _, _ = CASES["more rows"]
    view = view_of(run(load, control, 30.0))
    from dataclasses import replace

    at = float(int(view.now)) - 1
    history = view.history
    first = advise(replace(view, now=at, history=history))
    assert first
    assert [s.changes for s in advise(replace(view, now=at + 0.9, history=history))] == [s.changes for s in first]


CONTROLS = st.builds(
    Control,
    batching=st.sampled_from(["static", "continuous"]),
    allocation=st.sampled_from(["paged", "reserved"]),
    prefix_cache=st.booleans(),
    chunked_prefill=st.booleans(),
    max_num_seqs=st.sampled_from([1, 4, 64, 4096]),
    max_num_batched_tokens=st.sampled_from([16, 64, 512, 1 << 20]),
    max_prefill_chunk=st.sampled_from([0, 16, 64]),
    scheduling_policy=st.sampled_from(["fcfs", "shortest_prefill"]),
    preempt=st.sampled_from(["recompute", "swap", "auto"]),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CONTROLS, st.sampled_from([0.5, 4.0, 8.0]), st.sampled_from([150, 300, 1456]), st.sampled_from([0, 400]))
def test_whatever_is_suggested_can_be_sent_and_has_figures(control, rate, blocks, shared):
    load = Load(rate, (20, 600), (8, 120), shared, blocks, host_blocks=200, max_model_len=1200)
    found = advise(view_of(run(load, control, 12.0)))
    assert len(found) <= MOST
    for suggestion in found:
        assert suggestion.changes
        changed = msgspec.structs.replace(control, **suggestion.changes)
        check_control(changed, load.info)
        assert all(getattr(control, field) != value for field, value in suggestion.changes.items())
        assert any(character.isdigit() for character in suggestion.why)
        assert suggestion.evidence
        assert all(any(character.isdigit() for character in line) for line in suggestion.evidence)
        assert "\n" not in suggestion.why
        assert suggestion.expect


def test_every_rule_has_a_case():
    assert len(advice.RULES) == len(CASES) + 1  # and the cache's
