"""A `CapacityPlan` for a terminal: figures with what they rest on, the table of block sizes and its plot."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator

from engine.sizing.capacity import CapacityPlan
from engine.sizing.units import in_bytes, in_number, in_percent

WIDTH = 80
PLOT_HEIGHT = 13
_LABEL, _FIGURE = 16, 13
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def render(plan: CapacityPlan, color: bool) -> str:
    """The whole report, at most 80 columns wide."""
    sections = [_model(plan), _memory(plan), _kv(plan), _requests(plan), _sharing(plan), _block_sizes(plan, color)]
    if plan.notes:
        sections.append([line for note in plan.notes for line in _wrapped(f"note: {note}", "", "  ")])
    return "\n\n".join("\n".join(section) for section in sections if section)


def _row(label: str, figure: str, basis: str = "") -> list[str]:
    start = f"  {label:<{_LABEL}}{figure:>{_FIGURE}}  "
    return _wrapped(basis, start, " " * len(start))


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return lines or [first.rstrip()]


def _model(plan: CapacityPlan) -> list[str]:
    model = plan.model
    if model is None:
        return []
    heads = f"{model.heads} heads" + (f" on {model.kv_heads}" if model.attention in ("GQA", "MQA") else "")
    return _wrapped(
        f"{model.name}: {model.total_parameters:,} parameters, {model.layers} layers, {model.attention} ({heads})",
        "",
        "  ",
    )


def _memory(plan: CapacityPlan) -> list[str]:
    memory, why = plan.memory, plan.assumptions
    if memory is None:
        return []
    return [
        "Memory" if plan.devices == 1 else f"Memory of each of {plan.devices} devices",
        *_row("memory", in_bytes(memory.total)),
        *_row("usable", in_bytes(memory.usable), why["usable"]),
        *_row("weights", in_bytes(memory.weights), why["weights"]),
        *_row("overhead", in_bytes(memory.overhead), why["overhead"]),
        *_row("left for KV", in_bytes(memory.kv)),
    ]


def _kv(plan: CapacityPlan) -> list[str]:
    kv = plan.kv
    if kv is None:
        return []
    blocks = f"blocks of {plan.block_size}"
    return [
        "KV cache" if plan.devices == 1 else "KV cache on each device",
        *_row("a token", in_bytes(kv.bytes_per_token), plan.assumptions["kv_bytes_per_token"]),
        *_row("a block", in_bytes(kv.bytes_per_block), f"{plan.block_size} slots"),
        *(_row(blocks, f"{kv.num_blocks:,}", f"{kv.num_slots:,} slots") if kv.num_blocks is not None else []),
    ]


def _requests(plan: CapacityPlan) -> list[str]:
    requests, at_once = plan.requests, plan.concurrency
    if requests.assumed and plan.sharing and at_once is None:
        return []  # it was not asked for
    prompt, output = in_number(requests.mean_prompt_tokens), in_number(requests.mean_output_tokens)
    mean = " on average" if requests.count > 1 else ""
    lines = _wrapped(f"Requests of {prompt} + {output} tokens{mean} ({plan.assumptions['requests']})", "", "  ")
    lines += _row(
        "reserved",
        f"{requests.reserved_slots:,} slots",
        f"{in_number(requests.tokens)} used ({in_percent(requests.reserved_used)}) of one long run",
    )
    lines += _row(
        "paged",
        f"{in_number(requests.paged_blocks)} block{'s' if requests.paged_blocks != 1 else ''}",
        f"{in_number(requests.paged_slots)} slots, {in_number(requests.paged_empty)} empty "
        f"({in_percent(requests.paged_empty_of_tokens)} of the sequence)",
    )
    if at_once is None:
        return lines
    lines += ["", "At once"]
    lines += _row("reserved", f"{at_once.reserved:,}", f"{plan.context:,} slots each, in one run")
    longest, typical = in_number(at_once.paged_blocks), in_number(at_once.paged_running_blocks)
    lines += _row("paged", f"{at_once.paged:,}", f"{longest} blocks each, at their longest")
    lines += _row("paged, typically", f"{at_once.paged_running:,}", f"{typical} blocks each, the mean of decode steps")
    if at_once.paged_sharing is not None:
        lines += _row("paged, shared", f"{at_once.paged_sharing:,}", "as paged, the prefix's full blocks held once")
    return lines + _wrapped(f"paged: {plan.assumptions['concurrency']}", "  ", "    ")


def _sharing(plan: CapacityPlan) -> list[str]:
    sharing = plan.sharing
    if sharing is None:
        return []
    held = sharing.bytes_per_token

    def amount(tokens: int) -> str:
        return in_bytes(tokens * held) if held is not None else f"{tokens:,} slots"

    blocks = f"{sharing.shared_blocks:,} full blocks ({sharing.tokens_shared_blocks:,} tokens), held once"
    left = "no token is in a block that is not full"
    if sharing.left_over:
        left = f"{sharing.left_over} tokens of each session, in a block of its own"
    return [
        f"{sharing.sessions:,} sessions that share {sharing.tokens:,} tokens",
        *_row("apart", amount(sharing.tokens_apart), f"{sharing.sessions:,} times {sharing.tokens:,} tokens"),
        *_row("shared", amount(sharing.tokens_shared_blocks), blocks),
        *_row("left over", amount(sharing.tokens_left_over), left),
    ]


def _block_sizes(plan: CapacityPlan, color: bool) -> list[str]:
    if plan.best_block_size is None:
        return []
    costs = plan.block_sizes
    least = min(cost.together for cost in costs)
    near = [cost.block_size for cost in costs if cost.together - least <= 0.005]
    lines = [
        "Block size: the cost, as a share of the KV of a running request",
        f"  {'size':>5}{'blocks':>10}{'lookups':>10}{'empty slots':>13}"
        f"{'in the tail':>14}{'in the table':>14}{'both':>10}",
    ]
    for cost in costs:
        mark = " ◀" if cost.block_size == plan.best_block_size else ""
        lines.append(
            f"  {cost.block_size:>5}{in_number(cost.entries):>10}{cost.lookups:>10,.0f}"
            f"{in_number(cost.empty_slots):>13}{in_percent(cost.fragmentation):>14}"
            f"{in_percent(cost.table):>14}{in_percent(cost.together):>10}{mark}"
        )
    lines += ["", *_plot(plan, color), ""]
    span = f"{near[0]}" if len(near) == 1 else f"{near[0]} to {near[-1]}"
    lines += _wrapped(
        f"least at {plan.best_block_size}; within half a point of it: {span}. Kernels have limits of their own "
        "(vLLM's FlashAttention takes multiples of 16, FlashMLA 64).",
        "  ",
        "  ",
    )
    lines += _wrapped(f"tail: {plan.assumptions['tail']}", "  ", "    ")
    lines += _wrapped(f"table: {plan.assumptions['lookup']}; 4 bytes of memory for each block", "  ", "    ")
    return lines


def _plot(plan: CapacityPlan, color: bool) -> Iterator[str]:
    """Both costs fall and rise as powers of the size: lines on two logarithmic axes, which cross near the best."""
    import plotext

    costs = plan.block_sizes
    places = {cost.block_size: place for place, cost in enumerate(costs)}
    plotext.clear_figure()
    if not color:
        plotext.theme("clear")
    plotext.plotsize(WIDTH, PLOT_HEIGHT)
    plotext.title("% of a running request's KV, by block size")
    for label, marker, line in (
        ("tail", "dot", [(cost.block_size, cost.fragmentation) for cost in costs]),
        ("table", "x", [(cost.block_size, cost.table) for cost in costs]),
        ("both", "braille", [(cost.block_size, cost.together) for cost in costs]),
    ):
        points = [(places[size], math.log10(100 * share)) for size, share in line if share > 0]
        plotext.plot(*zip(*points, strict=True), label=label, marker=marker)
    plotext.xticks(list(places.values()), [str(size) for size in places])
    shares = [cost.together for cost in costs]
    lowest, highest = math.floor(math.log10(100 * min(shares))) - 1, math.ceil(math.log10(100 * max(shares)))
    plotext.yticks(list(range(lowest, highest + 1)), [f"{10.0**power:g}" for power in range(lowest, highest + 1)])
    plotext.ylim(lowest, highest)
    picture = plotext.build()
    plotext.clear_figure()
    return ((line if color else _COLOR.sub("", line)).rstrip() for line in picture.splitlines())
