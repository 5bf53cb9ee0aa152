"""Making the lengths of a trace fit a server: all of them by one factor, or a request that is too long by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import UNSET

from loadgen.traces.model import Header, Session, TraceError, Turn

TOO_LONG = ("error", "skip", "cut")


def scaled_block_size(block_size: int, factor: float) -> int:
    """The tokens that a hash id names after scaling. Raises `TraceError` unless it is a whole number, at least 1."""
    if not factor > 0:
        raise TraceError(f"--length-scale {factor:g}: must be above 0")
    size = round(block_size * factor)
    if size < 1 or abs(size - block_size * factor) > 1e-6:
        near = [max(1, int(block_size * factor)), max(1, int(block_size * factor)) + 1]
        factors = " and ".join(f"{number}/{block_size} = {number / block_size}" for number in near)
        raise TraceError(
            f"--length-scale {factor:g}: blocks of {block_size} tokens must become whole tokens; "
            f"the factors next to it are {factors}"
        )
    return size


def scaled_header(header: Header, factor: float) -> Header:
    """The header of a scaled trace. Raises `TraceError` for a factor that cuts a token of a block."""
    block_size = header.block_size if header.block_size is UNSET else scaled_block_size(header.block_size, factor)
    recipe = {**header.recipe, "length_scale": factor}
    return msgspec.structs.replace(header, block_size=block_size, recipe=recipe)


def scaled(sessions: Iterable[Session], header: Header, factor: float) -> Iterator[Session]:
    """All prompts and answers longer or shorter by a factor, which keeps what prompts share and what they do not.

    A prompt's full blocks stay full ones of the scaled size, and its last short block stays short. Raises `TraceError`
    as `scaled_header`, and for a turn whose length is that of its text.
    """
    old, new = header.block_size, scaled_header(header, factor).block_size

    def scale(turn: Turn) -> Turn:
        if turn.input_tokens is UNSET:
            raise ValueError("has a text, whose length cannot be scaled")
        if turn.hash_ids is UNSET or old is UNSET or new is UNSET:
            tokens = max(1, round(turn.input_tokens * factor))
        else:
            full, rest = divmod(turn.input_tokens, old)
            tokens = full * new + (max(1, rest * new // old) if rest else 0)
        output = UNSET if turn.output_tokens is UNSET else max(1, round(turn.output_tokens * factor))
        return msgspec.structs.replace(turn, input_tokens=tokens, output_tokens=output)

    for session in sessions:
        try:
            turns = tuple(scale(turn) for turn in session.turns)
        except ValueError as error:
            raise TraceError(f"--length-scale {factor:g}: session {session.session} {error}") from None
        yield msgspec.structs.replace(session, turns=turns)


def tokens_of(turn: Turn) -> int:
    """Tokens of a turn's prompt and answer, as far as the trace says: of a text none."""
    return sum(0 if tokens is UNSET else tokens for tokens in (turn.input_tokens, turn.output_tokens))


def fitting_scale(tokens: int, header: Header, limit: int) -> float | None:
    """The largest factor, below 1, by which a request of so many tokens keeps within the limit; None: there is none.

    It is one that `scaled` takes. The 2 tokens left are for lengths that are rounded up.
    """
    steps = 10_000 if header.block_size is UNSET else header.block_size
    number = min(int((limit - 2) / tokens * steps), steps - 1)
    return number / steps if number > 0 else None


def fit(session: Session, limit: int, policy: str, header: Header, scale: float = 1.0) -> Session | None:
    """The session if all its requests keep within `limit` tokens, prompt and answer together: a server's context.

    `header` is that of the trace as it is here, scaled where the session is: by `scale`.

    Else by the policy: `error` raises `TraceError` that names the session, the tokens, and the largest
    `--length-scale` for them; `skip` is None; `cut` cuts the end of the prompt off, and of the answer only what leaves
    no prompt. What a text's tokens are is not known here.
    """
    if policy not in TOO_LONG:
        raise ValueError(f"policy must be one of {', '.join(TOO_LONG)}, got {policy!r}")
    if all(tokens_of(turn) <= limit for turn in session.turns):
        return session
    if policy == "skip":
        return None
    if policy == "cut":
        return msgspec.structs.replace(session, turns=tuple(_cut(turn, header, limit) for turn in session.turns))
    index, turn = next((index, turn) for index, turn in enumerate(session.turns) if tokens_of(turn) > limit)
    less = None if turn.input_tokens is UNSET else fitting_scale(tokens_of(turn), header, limit)
    hint = "" if less is None else f"; it would fit by --length-scale {less * scale}"
    raise TraceError(
        f"session {session.session}: turn {index} has {tokens_of(turn):,} tokens, prompt and answer together, "
        f"and the server takes {limit:,}{hint}, or let --too-long skip or cut"
    )


def _cut(turn: Turn, header: Header, limit: int) -> Turn:
    if tokens_of(turn) <= limit:
        return turn
    if limit < 2:
        raise TraceError(f"--too-long cut: a request needs 2 tokens, and the server takes {limit}")
    output = turn.output_tokens
    if turn.input_tokens is UNSET:  # only the answer is known to be too long
        return msgspec.structs.replace(turn, output_tokens=limit - 1)
    if output is not UNSET:
        output = min(output, limit - 1)
    tokens = min(turn.input_tokens, limit - (0 if output is UNSET else output))
    ids = turn.hash_ids
    if ids is not UNSET and header.block_size is not UNSET:
        ids = ids[: -(-tokens // header.block_size)]
    return msgspec.structs.replace(turn, input_tokens=tokens, hash_ids=ids, output_tokens=output)
