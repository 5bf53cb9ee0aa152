"""llama.cpp's /slots: what each row of its batch does, without anybody's text. Pure."""

from __future__ import annotations

import msgspec

MAX_BYTES = 32 << 20
MAX_SLOTS = 4_096


class Slot(msgspec.Struct, frozen=True):
    """A row of llama.cpp's batch. Token counts are of the request that it serves; None: not told, as of idle ones.

    `prompt_tokens`: those that are in its context so far, `cached_tokens` of them found there. `held`: all that are in
    its context, those decoded included; an idle one keeps them for a prompt that begins so."""

    id: int
    busy: bool
    task: int | None = None
    context: int | None = None  # tokens that fit
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    decoded: int | None = None
    held: int | None = None


class _Next(msgspec.Struct):
    n_decoded: int | None = None


class _Row(msgspec.Struct):
    """The fields of all versions; others, the prompt among them, are not kept."""

    id: int
    is_processing: bool | None = None
    state: int | str | None = None  # once: 0 idle
    id_task: int | None = None
    task_id: int | None = None  # once
    n_ctx: int | None = None
    n_prompt_tokens: int | None = None  # those generated included
    n_prompt_tokens_processed: int | None = None
    n_prompt_tokens_cache: int | None = None
    n_decoded: int | None = None
    next_token: list[_Next] | _Next | None = None  # once one object


_DECODER = msgspec.json.Decoder(list[_Row], strict=False)


def read_slots(payload: bytes) -> tuple[Slot, ...]:
    """Raises ValueError for what is no answer of /slots, or too long."""
    if len(payload) > MAX_BYTES:
        raise ValueError(f"an answer of /slots of {len(payload):,} bytes; at most {MAX_BYTES:,} are read")
    try:
        rows = _DECODER.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:  # the latter: brackets in brackets in brackets
        raise ValueError(f"cannot read the answer of /slots: {error}") from None
    if len(rows) > MAX_SLOTS:
        raise ValueError(f"an answer of /slots with {len(rows):,} slots; at most {MAX_SLOTS:,} are read")
    return tuple(_slot(row) for row in rows)


def _slot(row: _Row) -> Slot:
    after = row.next_token[:1] if isinstance(row.next_token, list) else [row.next_token or _Next()]
    decoded = _told(row.n_decoded, *(step.n_decoded for step in after))
    cached = _told(row.n_prompt_tokens_cache)
    processed = _told(row.n_prompt_tokens_processed)
    held = _told(row.n_prompt_tokens)
    busy = row.is_processing if row.is_processing is not None else row.state not in (None, 0, "0", "idle")
    whole = processed is not None and cached is not None
    if whole and not busy and not processed and not cached:  # it forgot its last request, and tells zeros
        return Slot(row.id, busy, _told(row.id_task, row.task_id), _told(row.n_ctx), held=held)
    return Slot(
        id=row.id,
        busy=busy,
        task=_told(row.id_task, row.task_id),
        context=_told(row.n_ctx),
        prompt_tokens=held if processed is None or cached is None else processed + cached,
        cached_tokens=cached,
        decoded=decoded,
        held=held if whole else None,
    )


def _told(*values: int | None) -> int | None:
    """The first that is told; -1 stands for none."""
    return next((value for value in values if value is not None and value >= 0), None)
