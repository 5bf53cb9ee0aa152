"""Advice that can be tried: what the measured window says could be set better, with its figures.

Pure. Only what was measured is told, and only what a control can change is suggested. Windows end at whole seconds and
begin no earlier than the last switch, so that advice neither flickers nor judges what no longer holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.protocol import Control, RowKind
from tui import controls, figures
from tui.history import Step, Window, quantile, step_seconds
from tui.view import View

MOST = 3  # suggestions
LEAST_SECONDS = 5.0  # observed
LEAST_STEPS = 20
LEAST_REQUESTS = 5  # of which a quantile is told
STEPS = 200  # of the latest, those whose rows are counted
CELLS = 10_000  # of the latest, those whose kinds are looked at
FULL = 0.9  # of the pool, held by as many rows as are suggested at most

Field = str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change of control that can be sent as it is.

    `why` has its figures in one line, `evidence` all of them with window and counts; `expect` is what it should do.
    """

    changes: Mapping[Field, Any]
    why: str
    evidence: tuple[str, ...]
    expect: str


@dataclass(frozen=True, slots=True)
class _Facts:
    """What was measured, all of it under the control that holds now."""

    view: View
    control: Control
    window: Window
    steps: Sequence[Step]  # the latest of the window
    rows: Sequence[int]  # of each of those, held ones too
    queue: int  # who waited at the window's end

    @property
    def waiting_share(self) -> float:
        """Of the steps, those after which somebody waited."""
        return self.window.waiting_steps / self.window.steps

    @property
    def full_share(self) -> float:
        """Of the latest steps, those with as many rows as the limit allows."""
        return sum(rows >= self.control.max_num_seqs for rows in self.rows) / len(self.rows)

    @property
    def seconds(self) -> str:
        return figures.seconds(self.window.observed)

    def waited(self) -> str:
        share, steps = figures.percent(self.waiting_share), round(self.window.steps)
        return f"somebody waited after {share} of {steps:,} steps, {self.queue:,} did at the end of {self.seconds}"

    def spent(self) -> str:
        used, budget = round(self.window.budget_used), round(self.window.budget_tokens)
        return f"{used:,} of {budget:,} tokens of budget used in {self.seconds}"

    def held(self) -> str:
        return f"{figures.percent(self.window.occupancy)} of the pool's slots held, mean over {self.seconds}"

    def filled(self) -> str:
        steps, limit = len(self.rows), self.control.max_num_seqs
        return f"{figures.percent(self.full_share)} of the last {steps:,} steps had all {limit:,} rows"


Found = tuple[float, Suggestion] | None  # how much there is to win, of 1


def advise(view: View, window: float = 30.0, tried: Sequence[Mapping[Field, Any]] = ()) -> tuple[Suggestion, ...]:
    """At most three suggestions, the best first; none without enough evidence.

    `tried` are changes that were tried or undone, not to be suggested again. What was in force within `window`
    seconds and was left is not either: that is in the history of switches.
    """
    facts = _measure(view, window)
    if facts is None:
        return ()
    control = facts.control
    found = [one for one in (rule(facts) for rule in RULES) if one is not None]
    left = [switch.before for switch in view.history.switches if facts.window.end - window < switch.time <= view.now]
    new = [
        (score, suggestion)
        for score, suggestion in found
        if not any(_within(suggestion.changes, msgspec.structs.asdict(before)) for before in left)
        and not any(_within(suggestion.changes, changes) for changes in tried)
        and not _within(suggestion.changes, msgspec.structs.asdict(control))
    ]
    new.sort(key=lambda one: -one[0])
    return tuple(suggestion for _, suggestion in new[:MOST])


def _within(changes: Mapping[Field, Any], control: Mapping[Field, Any]) -> bool:
    """Whether a control, or a change of it, has all that these changes would set."""
    return all(field in control and control[field] == value for field, value in changes.items())


def _measure(view: View, seconds: float) -> _Facts | None:
    """The window under the control that holds, or None if there is too little of it, or its end was not seen."""
    end = float(math.floor(view.now))
    switches = [switch.time for switch in view.history.switches if switch.time <= view.now]
    window = view.history.window(max(end - seconds, *switches[-1:], -math.inf), end)
    if window.observed < LEAST_SECONDS or window.steps < LEAST_STEPS or window.queue_length is None:
        return None
    steps = [step for step in view.steps[-STEPS:] if window.start < step.time <= window.end]
    if len(steps) < LEAST_STEPS:
        return None
    return _Facts(view, view.control, window, steps, [len(step.cells) for step in steps], window.queue_length)


def _few(steps: Sequence[Step]) -> Sequence[Step]:
    """The latest of them, with few cells in all: the others may have a thousand each."""
    left, count = CELLS, 0
    for step in reversed(steps):
        left -= len(step.cells)
        count += 1
        if left <= 0:
            break
    return steps[len(steps) - count :]


def _cells(steps: Sequence[Step], kind: RowKind) -> int:
    """How many requests had a row of that kind in these steps."""
    return sum(cell.kind == kind for step in steps for cell in step.cells.values())


def _prefill_tokens(step: Step) -> float:
    """Of one prompt in a step that prefills, as a mean: all other rows are of a token."""
    prompts = _cells([step], "prefill")
    return (step.tokens - len(step.cells) + prompts) / max(1, prompts)


def _page(facts: _Facts) -> Found:
    """Reservations that are mostly empty, or holes that none fits in."""
    window, control = facts.window, facts.control
    if control.allocation != "reserved" or window.internal_share is None or window.external_share is None:
        return None
    internal, external = window.internal_share, window.external_share
    if internal < 0.3 and (external < 0.1 or facts.waiting_share < 0.2):
        return None
    evidence = [
        f"internal waste {figures.percent(internal)} of the held slots, mean over {facts.seconds}",
        f"external waste {figures.percent(external)} of the pool, mean over {facts.seconds}",
    ]
    why = f"{figures.percent(internal)} of the held slots are reserved and unfilled"
    if internal < 0.3:
        why = f"{figures.percent(external)} of the pool lies in holes that no reservation fits in"
    contexts = [ended.context for ended in window.ended]
    if len(contexts) >= LEAST_REQUESTS:
        longest = f"p99 context {round(quantile(contexts, 0.99) or 0):,} of {facts.view.engine.max_model_len:,}"
        why += f"; {longest}"
        evidence.append(f"{longest}: {len(contexts):,} requests that ended in {facts.seconds}")
    expect = "waste of less than a block a request, so that more requests run at once"
    return max(internal, external), Suggestion(
        {"allocation": "paged"}, f"{why}: page instead of reserving", (*evidence, facts.waited()), expect
    )


def _join_at_once(facts: _Facts) -> Found:
    """A static batch whose rows are held by those that have ended, while others wait."""
    if facts.control.batching != "static" or facts.waiting_share < 0.2:
        return None
    steps = _few(facts.steps)
    held, rows = _cells(steps, "held"), sum(len(step.cells) for step in steps)
    share = held / max(1, rows)
    if share < 0.1:
        return None
    ended = f"{figures.percent(share)} of the rows belong to requests that have ended"
    return share, Suggestion(
        {"batching": "continuous"},
        f"{ended} while {facts.queue:,} wait: let those join at once",
        (f"{held:,} of {rows:,} rows of the last {len(steps):,} steps were held", facts.waited()),
        "no row without work, and requests start when there is room: less TTFT, more tokens a second",
    )


def _fewer_rows(facts: _Facts) -> Found:
    """More requests run than the pool holds to their ends: much of the work is done again after preemptions."""
    window, control = facts.window, facts.control
    again, computed = round(window.recomputed_tokens), round(window.budget_used)
    count, share = len(window.preempted), again / max(1, computed)
    mean = sum(facts.rows) / len(facts.rows)
    rows = max(1, int(mean * 0.9))
    if count < LEAST_REQUESTS or share < 0.2 or rows >= control.max_num_seqs:
        return None
    times = f"{count:,} preemptions in {facts.seconds}"
    return min(1.0, share), Suggestion(
        {"max_num_seqs": rows},
        f"after {times} {again:,} tokens were computed again, {figures.percent(share)} of all that were computed: let "
        f"{rows:,} run at once instead of {mean:.0f}",
        (
            f"{times}, in which {len(window.ended):,} requests ended: {again:,} of {computed:,} computed tokens had "
            "been computed before",
            f"{mean:.1f} rows a step, mean of the last {len(facts.steps):,}; the limit is {control.max_num_seqs:,}",
            facts.held(),
        ),
        "what runs fits to its end: fewer preemptions, less work done again",
    )


def _cheaper_preemption(facts: _Facts) -> Found:
    """The way to preempt that costs more by the rates that the engine has measured."""
    control = facts.control
    costs = [
        (lost.recompute_seconds, lost.swap_seconds)
        for lost in facts.window.preempted
        if lost.recompute_seconds is not None and lost.swap_seconds is not None
    ]
    if len(costs) < 3 or control.preempt == "auto":
        return None
    recompute, swap = (sum(both) for both in zip(*costs, strict=True))
    taken, other = (swap, recompute) if control.preempt == "swap" else (recompute, swap)
    if other > taken * 0.7:
        return None
    way = "recompute" if control.preempt == "swap" else "swap"
    sums = f"{figures.seconds(other)} by {way}, {figures.seconds(taken)} by {control.preempt}"
    return min(1.0, (taken - other) / facts.window.observed), Suggestion(
        {"preempt": way},
        f"{len(costs):,} preemptions in {facts.seconds} would cost {sums}: preempt by {way}",
        (f"{len(costs):,} preemptions in {facts.seconds}, expected by the rates measured: {sums}",),
        "less time in preempting",
    )


def _more_rows(facts: _Facts) -> Found:
    """All rows are taken, though tokens and memory are left."""
    window, control = facts.window, facts.control
    share, occupancy = window.budget_share, window.occupancy
    if control.batching != "continuous" or share is None or not occupancy or max(share, occupancy) > 0.7:
        return None
    rows = min(controls.NUMBERS["max_num_seqs"].most, int(control.max_num_seqs * min(2.0, FULL / occupancy)))
    if rows <= control.max_num_seqs or min(facts.waiting_share, facts.full_share) < 0.5 or window.preempted:
        return None
    budget = f"the budget is {figures.percent(share)} full"
    return facts.waiting_share * (1 - max(share, occupancy)), Suggestion(
        {"max_num_seqs": rows},
        f"all {control.max_num_seqs:,} rows are taken while {facts.queue:,} wait, and {budget}: let {rows:,} run",
        (facts.filled(), facts.waited(), facts.spent(), facts.held()),
        "fewer wait: less TTFT, more tokens a second; each step takes longer",
    )


def _chunk_prompts(facts: _Facts) -> Found:
    """Prompts run whole, so that those that do not fit what a step has left wait for the next."""
    window, control = facts.window, facts.control
    share, occupancy = window.budget_share, window.occupancy
    if control.chunked_prefill or control.batching != "continuous" or share is None or occupancy is None:
        return None
    if facts.waiting_share < 0.5 or share > 0.85 or occupancy > 0.8 or facts.full_share > 0.5:
        return None
    full = figures.percent(share)
    return facts.waiting_share * (1 - share), Suggestion(
        {"chunked_prefill": True},
        f"budget {full} full while {facts.queue:,} wait, because prompts run whole: cut them into chunks",
        (facts.spent(), facts.waited(), facts.filled(), facts.held()),
        "steps use their whole budget: prompts are through sooner",
    )


def _larger_budget(facts: _Facts) -> Found:
    """Every step spends its budget while requests wait, and takes little time."""
    window, control = facts.window, facts.control
    share, mean = window.budget_share, window.step_mean
    budget = min(controls.NUMBERS["max_num_batched_tokens"].most, control.max_num_batched_tokens * 2)
    if share is None or mean is None or budget == control.max_num_batched_tokens:
        return None
    if share < 0.9 or facts.waiting_share < 0.5 or facts.full_share > 0.5 or mean > 0.25:
        return None
    return facts.waiting_share * 0.5, Suggestion(
        {"max_num_batched_tokens": budget},
        f"budget {figures.percent(share)} full while {facts.queue:,} wait, and a step takes "
        f"{figures.seconds(mean)}: let it have {budget:,} tokens",
        (facts.spent(), facts.waited(), f"a step took {figures.seconds(mean)}, mean of {round(window.steps):,} steps"),
        "prompts are through in fewer steps: less TTFT; each step takes longer",
    )


def _smaller_chunks(facts: _Facts) -> Found:
    """Steps that prefill take long, and the decodes in them with it."""
    window, control = facts.window, facts.control
    prefills = [step for step in facts.steps if step.tokens > len(step.cells)]
    busy = [step_seconds(step.durations) for step in prefills]
    light = [step_seconds(step.durations) for step in facts.steps if step.tokens == len(step.cells)]
    if min(len(busy), len(light)) < LEAST_REQUESTS:
        return None
    few = _few(prefills)
    decodes = _cells(few, "decode") / len(few)
    with_prefill, without = sum(busy) / len(busy), sum(light) / len(light)
    if with_prefill < 3 * without or decodes < 1:
        return None
    changes: dict[Field, Any] = {"chunked_prefill": True}
    what = "cut prompts into chunks"
    if control.chunked_prefill:
        chunk = control.max_prefill_chunk or max(1, control.max_num_batched_tokens // 2)
        smaller = max(facts.view.engine.block_size, chunk // 2)
        at_once = quantile([_prefill_tokens(step) for step in few], 0.5)
        if smaller >= chunk or at_once is None or at_once < 1.2 * smaller:
            return None  # prompts are not cut, or no longer than that
        changes, what = {"max_prefill_chunk": smaller}, f"chunks of {smaller:,} instead of {chunk:,}"
    times = f"{figures.seconds(with_prefill)} a step with prefill, {figures.seconds(without)} without"
    evidence = [
        f"{times}: {len(busy):,} and {len(light):,} of the last {len(facts.steps):,} steps",
        f"{decodes:.1f} decodes in a step with prefill, mean of the last {len(few):,}",
    ]
    if len(window.tpot) >= LEAST_REQUESTS:
        half, slow = (figures.seconds(quantile(window.tpot, q)) for q in (0.5, 0.99))
        evidence.append(f"TPOT p50 {half}, p99 {slow} of {len(window.tpot):,} requests that ended in {facts.seconds}")
    return min(1.0, 0.05 * with_prefill / without), Suggestion(
        changes,
        f"{times}, and {decodes:.0f} answers stop meanwhile: {what}",
        tuple(evidence),
        "answers stop for less long while prompts are computed; prompts take more steps",
    )


def _cache_again(facts: _Facts) -> Found:
    """The prefix cache is off, though prompts were found in it before it was switched off."""
    control, history = facts.control, facts.view.history
    if control.prefix_cache or control.allocation == "reserved":
        return None
    off = [switch for switch in history.switches if switch.before.prefix_cache and not switch.after.prefix_cache]
    if not off or off[-1].time > facts.view.now:
        return None
    before = history.window(off[-1].time - 30.0, off[-1].time)
    share = before.hit_share
    if share is None or share < 0.1 or before.observed < LEAST_SECONDS:
        return None
    found, looked_up = round(before.found_tokens), round(before.looked_up_tokens)
    return share, Suggestion(
        {"prefix_cache": True},
        f"{figures.percent(share)} of {looked_up:,} prompt tokens were found before the cache was switched off",
        (
            f"{found:,} of {looked_up:,} tokens found in {figures.seconds(before.observed)} before step "
            f"{off[-1].seq:,}, from which the cache is off",
        ),
        "prompts that begin alike are computed once: less TTFT",
    )


def _short_ones_first(facts: _Facts) -> Found:
    """Memory is short, and the prompts that wait for it are of very different lengths."""
    window = facts.window
    share, occupancy = window.budget_share, window.occupancy
    if facts.control.scheduling_policy != "fcfs" or share is None or occupancy is None:
        return None
    if facts.waiting_share < 0.8 or occupancy < 0.7 or share > 0.8 or facts.full_share > 0.5:
        return None
    prompts = [state.num_tokens for state in facts.view.requests.values() if state.status == "waiting"]
    short, long = quantile(prompts, 0.1), quantile(prompts, 0.9)
    wait = quantile(window.ttft, 0.5)
    if wait is None or short is None or long is None or min(len(prompts), len(window.ttft)) < LEAST_REQUESTS:
        return None
    if long < 3 * short or wait < 2.0:
        return None
    return 0.3 * facts.waiting_share, Suggestion(
        {"scheduling_policy": "shortest_prefill"},
        f"TTFT p50 {figures.seconds(wait)}, and the prompts of {len(prompts):,} that wait are {short:,.0f} to "
        f"{long:,.0f} tokens (p10, p90): short ones first",
        (
            f"TTFT p50 {figures.seconds(wait)} of {len(window.ttft):,} first tokens in {facts.seconds}",
            f"{len(prompts):,} prompts wait: p10 {short:,.0f}, p90 {long:,.0f} tokens",
            facts.waited(),
            facts.held(),
        ),
        "most wait less: less TTFT at p50; long prompts wait up to the longest wait more",
    )


RULES: tuple[Callable[[_Facts], Found], ...] = (
    _page,
    _join_at_once,
    _fewer_rows,
    _cheaper_preemption,
    _more_rows,
    _chunk_prompts,
    _larger_budget,
    _smaller_chunks,
    _cache_again,
    _short_ones_first,
)
