"""A prediction as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.simulator.hardware import Roofline
from engine.simulator.prediction import Hits, Percentiles, Prediction
from engine.simulator.runner import StepCost


def report(prediction: Prediction) -> str:
    """The whole prediction, a line for each figure."""
    return table(lines(prediction))


def table(told: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<22} {text}".rstrip() for name, text in told)


def lines(prediction: Prediction) -> Iterator[tuple[str, str]]:
    settings, control = prediction.settings, prediction.settings.control
    requests, hits, ideal = prediction.requests, prediction.hits, prediction.hits.ideal
    waste, preemptions, queue = prediction.waste, prediction.preemptions, prediction.queue
    throughput, simulation, cost = prediction.throughput, prediction.simulation, prediction.settings.cost
    if not simulation.complete:
        yield "interrupted", "the figures are of what was served until then"
    blocks = "an infinite pool" if settings.num_blocks is None else f"{settings.num_blocks:,} blocks"
    yield (
        "engine",
        f"{blocks} of {settings.block_size} slots, {control.batching} batching, {control.allocation} allocation, "
        f"{control.scheduling_policy}, at most {control.max_num_seqs} rows and {control.max_num_batched_tokens} "
        f"tokens a step",
    )
    yield "step", _cost(cost)
    short = f", {requests.cut_short:,} of them cut short by the context" if requests.cut_short else ""
    yield "requests", f"{requests.completed:,} of {requests.total:,} served{short}"
    if requests.refused or requests.unsent:
        yield (
            "refused",
            f"{requests.refused:,} could never run in this pool and a context of {settings.max_model_len:,} "
            f"tokens; {requests.unsent:,} turns after them were not sent",
        )
    yield "tokens", f"{requests.prompt_tokens:,} of prompts, {requests.output_tokens:,} of answers"
    yield "prefix hits", _found(hits)
    if hits.copied_tokens or hits.evicted_tokens:
        yield (
            "",
            f"{hits.copied_tokens:,} tokens from parts of blocks; at least {hits.evicted_tokens:,} missed because "
            f"they had been evicted",
        )
    yield (
        "ideal hits",
        f"{hits.ideal_repeated_rate:.1%} of blocks ({ideal.repeated_blocks:,} of {ideal.blocks:,}) repeat "
        f"earlier ones; {hits.ideal_reusable_rate:.1%} ({ideal.reusable_blocks:,}) by the engine's rule: "
        f"full blocks, one token computed",
    )
    yield (
        "waste",
        f"internal {waste.internal_share:.1%} of held slots, external {waste.external_share:.1%} of the "
        f"pool (weighted by time); {waste.mean_held:,.0f} slots held on average",
    )
    yield "pool peak", f"{waste.peak_held_blocks:,} blocks held, {waste.peak_used_blocks:,} with cached ones"
    yield (
        "preemptions",
        f"{preemptions.recompute:,} by recompute, {preemptions.swap:,} by swap, of {preemptions.requests:,} requests; "
        f"{preemptions.lost_tokens:,} tokens lost, {preemptions.swapped_out_blocks:,} blocks swapped out",
    )
    yield "queue", f"at most {queue.max_length:,} wait"
    yield "wait", seconds(queue.wait)
    yield "time to first token", seconds(queue.time_to_first_token)
    yield "end to end", seconds(queue.end_to_end)
    yield "between tokens", seconds(queue.inter_token)
    yield (
        "throughput",
        f"{rate(throughput.output_tokens_per_second)} answer tokens/s, "
        f"{rate(throughput.prompt_tokens_per_second)} prompt tokens/s, "
        f"{rate(throughput.requests_per_second)} requests/s",
    )
    yield (
        "steps",
        f"{throughput.steps:,} with {throughput.mean_rows:.1f} rows on average; busy {throughput.busy_seconds:,.1f} of "
        f"{throughput.seconds:,.1f} simulated seconds",
    )
    yield (
        "this simulation",
        f"{simulation.wall_seconds:.1f} s, {simulation.peak_memory_bytes / 2**20:,.0f} MiB at most",
    )


def _cost(cost: StepCost | Roofline) -> str:
    if isinstance(cost, Roofline):
        return (
            f"{cost.overhead:g} s + the longer of {cost.weight_bytes:,} bytes of weights and {cost.kv_bytes:,} a token "
            f"of context at {cost.memory_bandwidth:g} a second, and {cost.token_operations:g} operations a token, "
            f"{cost.draw_operations:g} a drawn one and {cost.pair_operations:g} a pair at {cost.flops:g} a second"
        )
    told = f"{cost.step:g} s + {cost.token:g} s a token + {cost.context:g} s a token of context"
    if cost.row:
        told += f" + {cost.row:g} s a drawn token"
    if cost.attention:
        told += f" + {cost.attention:g} s a pair that attention looks at"
    return f"{told} + {cost.move:g} s a token moved"


def _found(hits: Hits) -> str:
    if hits.token_rate is None or hits.block_rate is None:
        return "nothing was looked up"
    return (
        f"{hits.token_rate:.1%} of tokens ({hits.found_tokens:,} of {hits.looked_up_tokens:,}), "
        f"{hits.block_rate:.1%} of blocks ({hits.found_blocks:,} of {hits.looked_up_blocks:,}), at first admissions"
    )


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def seconds(times: Percentiles) -> str:
    """A median below a tenth of a second is told in milliseconds."""
    if times.p50 is None or times.p90 is None or times.p99 is None:
        return "nobody"
    if times.p50 < 0.1:
        return f"{times.p50 * 1e3:.1f} ms median, {times.p90 * 1e3:.1f} ms at 90 %, {times.p99 * 1e3:.1f} ms at 99 %"
    return f"{times.p50:,.2f} s median, {times.p90:,.2f} s at 90 %, {times.p99:,.2f} s at 99 %"
