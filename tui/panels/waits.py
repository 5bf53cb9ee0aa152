"""Why the request that is next still waits, in words: as many of them as there is room for."""

from __future__ import annotations

from engine.protocol import Control, Wait


def reason(wait: Wait, control: Control, width: int) -> str:
    """The longest wording of at most `width` characters, or the shortest one."""
    wordings = _wordings(wait, control)
    return next((words for words in wordings if len(words) <= width), wordings[-1])


def _wordings(wait: Wait, control: Control) -> tuple[str, ...]:
    need, have, hole = wait.needed_blocks, wait.available_blocks, wait.longest_hole
    match wait.cause:
        case "rows":
            return f"the batch is full ({control.max_num_seqs:,} rows)", "batch is full"
        case "tokens":
            return f"the token budget is spent ({control.max_num_batched_tokens:,} a step)", "budget is spent"
        case "blocks":
            return (
                f"needs {need:,} blocks, {have:,} available",
                f"{need:,} blocks, {have:,} left",
                f"for {need:,} blocks",
            )
        case "hole":
            return (
                f"no hole of {need:,} blocks (free {have:,}, longest hole {hole:,})",
                f"no hole of {need:,} (longest {hole:,})",
                f"no hole of {need:,}",
            )
        case "batch":
            return "a static batch runs, and nobody joins it", "for static batch"
        case "prefix":
            return "its prefix is being computed by another request", "its prefix is being computed", "for its prefix"
        case "parent":
            return "its parent's prompt is being computed", "for its parent"
        case "share":
            return "its client has its share of the batch", "client has its share", "for its turn"
