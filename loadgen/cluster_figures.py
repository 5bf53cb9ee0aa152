"""What the engines of a cluster did during a run: each by itself, each pool, and all together. Pure.

Counts add up over workers, and percentiles are of all their steps and transfers together. Waste and memory are of one
engine's pool each, and stay with it: no figure of all is made of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.cluster.protocol import ClusterState, Role, RouterState, WorkerState
from loadgen.continued import merged_counts
from loadgen.engine_figures import EngineFigures
from loadgen.interference import merged_interference
from loadgen.transfers import merged_transfers

ROLES: tuple[Role, ...] = ("prefill", "decode", "replica")
FACTS = ("model", "dtype", "quantize", "device", "block_size", "max_model_len")  # where all are alike
SUMMED = (
    "steps",
    "prefill_tokens",
    "decode_tokens",
    "held_tokens",
    "sampled_tokens",
    "preemptions",
    "preemptions_recompute",
    "preemptions_swap",
    "recomputed_tokens",
    "swapped_out_blocks",
    "swapped_in_blocks",
    "forks",
    "forked_tokens",
    "copied_blocks",
    "looked_up_tokens",
    "found_tokens",
    "found_prompt_tokens",
    "found_decoded_tokens",
    "found_copied_tokens",
    "evicted_tokens",
    "resumed_looked_up_tokens",
    "resumed_found_tokens",
    "tokens_not_recomputed",
    "records_lost",
)
_OF_ROUTER = ("decisions", "by_prefix", "bounded", "local", "handed_over", "recovered")
_ONE_LIFE = ("prefill_tokens", "decode_tokens", "looked_up_tokens", "found_tokens")
_TRANSFERRED = {"requests": "requests", "blocks": "blocks", "nbytes": "bytes"}

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """One worker: the cluster's word of it before the run (None: it was not there) and after, and what its stream told.

    `figures` None: its stream was not read. `lives`: the ledger of each life of its engine.
    """

    before: WorkerState | None
    after: WorkerState
    figures: Mapping[str, Any] | None = None
    lives: tuple[EngineFigures, ...] = ()


def cluster_figures(first: ClusterState, last: ClusterState, runs: Sequence[WorkerRun]) -> Figures:
    """The figures of a run, as those of one engine where they add up, with `cluster` beside them."""
    workers = {run.after.name: _worker(run) for run in runs}
    pools = {}
    for role in ROLES:
        if own := [run for run in runs if run.after.role == role]:
            pools[role] = {"workers": len(own)} | _together(own, workers) | {"imbalance": _imbalance(own, workers)}
    whole = _counted_once(_together(runs, workers))
    streamed = [run.figures for run in runs if run.figures is not None]
    facts = {name: values.pop() for name in FACTS if len(values := {one[name] for one in streamed}) == 1}
    modes = list(dict.fromkeys(mode for one in streamed for mode in one["modes"]))
    return {
        **facts,
        "modes": modes,
        **whole,
        "cluster": {
            "before": msgspec.to_builtins(first.control),
            "control": msgspec.to_builtins(last.control),
            "workers": workers,
            "pools": pools,
            "router": _router(first.router, last.router),
            "imbalance": _imbalance(runs, workers),
        },
    }


def _worker(run: WorkerRun) -> Figures:
    """One worker's figures: by its stream, else by what the cluster tells of it."""
    after, before = run.after, run.before
    told: Figures = {
        "role": after.role,
        "node": after.node,
        "phase": after.phase,
        "reason": after.reason,
        "streamed": run.figures is not None,
        "restarts": after.restarts - (0 if before is None else before.restarts),
        "routed": after.routed - (0 if before is None else before.routed),
    }
    if run.figures is None:
        return told | _told_by_cluster(run, told["restarts"])
    lives = [*run.figures.get("earlier_lives", ()), run.figures]
    return told | {**run.figures, "restarts": told["restarts"]} | _sums(lives) | _of_ledgers(run.lives)


def _told_by_cluster(run: WorkerRun, restarts: int) -> Figures:
    """The growth of the totals that the cluster tells; None: they began anew, or the worker is not there any more."""
    before, after = run.before, run.after
    known = after.phase == "ready" and not restarts and (before is None or before.phase != "dead")
    told: Figures = {name: _grown(before, after, name) if known else None for name in _ONE_LIFE}
    for side, failed in (("sent", "expired"), ("received", "failed")):
        now, then = getattr(after, side), None if before is None else getattr(before, side)
        told |= {f"{side}_{title}": _grown(then, now, name) for name, title in _TRANSFERRED.items()}
        told[f"{side}_{failed}"] = _grown(then, now, failed)
    for name in ("alone", "mixed"):
        steps, seconds = 0, 0.0
        for kind in ("colocated", "separated"):
            now = getattr(getattr(after, kind), name)
            then = None if before is None else getattr(getattr(before, kind), name)
            steps += _grown(then, now, "steps")
            seconds += _grown(then, now, "seconds")
        told[f"decode_steps_{name}"] = steps
        told[f"mean_decode_step_{name}_ms"] = seconds * 1000 / steps if steps else None
    return told | {"hit_rate": _share(told["found_tokens"], told["looked_up_tokens"])}


def _grown(before: msgspec.Struct | None, after: msgspec.Struct, name: str) -> Any:
    return getattr(after, name) - (0 if before is None else getattr(before, name))


def _together(runs: Sequence[WorkerRun], workers: Mapping[str, Figures]) -> Figures:
    """Some workers as one."""
    own = [workers[run.after.name] for run in runs]
    if all(run.figures is not None for run in runs):
        return _sums(own) | _of_ledgers([life for run in runs for life in run.lives])
    names = [
        *_ONE_LIFE,
        *(f"{side}_{title}" for side in ("sent", "received") for title in _TRANSFERRED.values()),
        *("sent_expired", "received_failed", "decode_steps_alone", "decode_steps_mixed"),
    ]
    return _sums(own, names)


def _sums(parts: Sequence[Mapping[str, Any]], names: Collection[str] = SUMMED) -> Figures:
    """Of every count; None where one of them is not known."""
    told: Figures = {}
    for name in names:
        values = [part.get(name) for part in parts]
        told[name] = None if None in values else sum(values)
    return told | {"hit_rate": _share(told["found_tokens"], told["looked_up_tokens"])}


def _of_ledgers(ledgers: Sequence[EngineFigures]) -> Figures:
    """Percentiles of all their steps and transfers, which do not follow from those of each."""
    return (
        merged_interference(ledger.interference for ledger in ledgers).figures()
        | merged_transfers(ledger.transfers for ledger in ledgers).figures()
        | merged_counts(ledger.continued for ledger in ledgers).figures()
    )


def _counted_once(whole: Figures) -> Figures:
    """What a request that went on in another engine found there again has saved no computing."""
    again = whole.get("continued_found_tokens")
    if again is None:
        return whole
    looked_up = whole["looked_up_tokens"] - whole["continued_looked_up_tokens"]
    return whole | {
        "hit_rate": _share(whole["found_tokens"] - again, looked_up),
        "tokens_not_recomputed": whole["tokens_not_recomputed"] - again,
    }


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _imbalance(runs: Sequence[WorkerRun], workers: Mapping[str, Figures]) -> float | None:
    """Of the tokens that each worker computed, the most over the mean; None: there is but one, or it is not known."""
    computed = []
    for run in runs:
        own = workers[run.after.name]
        if own["prefill_tokens"] is None or own["decode_tokens"] is None:
            return None
        computed.append(own["prefill_tokens"] + own["decode_tokens"])
    if len(computed) < 2 or not sum(computed):
        return None
    return float(max(computed) * len(computed) / sum(computed))


def _router(before: RouterState, after: RouterState) -> Figures:
    """What the router decided during the run."""
    told: Figures = {name: _grown(before, after, name) for name in _OF_ROUTER}
    seconds = after.decision_seconds - before.decision_seconds
    return told | {"mean_decision_us": seconds * 1e6 / told["decisions"] if told["decisions"] else None}
