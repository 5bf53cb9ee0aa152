"""llama.cpp's /slots, as its versions have answered, without anybody's text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers import slots
from servers.slots import Slot, read_slots

NOW: dict[str, Any] = {
    "id": 0,
    "id_task": 135,
    "n_ctx": 65536,
    "speculative": False,
    "is_processing": True,
    "n_prompt_tokens": 532,  # 32 of them generated
    "n_prompt_tokens_processed": 100,
    "n_prompt_tokens_cache": 400,
    "params": {"n_predict": -1, "seed": 42, "grammar": "secret", "lora": []},
    "prompt": "a secret prompt",
    "generated": "a secret answer",
    "next_token": [{"has_next_token": True, "has_new_line": False, "n_remain": -1, "n_decoded": 32}],
}


def read(*rows: dict[str, Any]) -> tuple[Slot, ...]:
    return read_slots(json.dumps(rows).encode())


def test_a_busy_slot() -> None:
    assert read(NOW) == (
        Slot(id=0, busy=True, task=135, context=65536, prompt_tokens=500, cached_tokens=400, decoded=32, held=532),
    )


def test_a_slot_that_never_worked_tells_its_context_alone() -> None:
    idle = {"id": 3, "n_ctx": 4096, "speculative": False, "is_processing": False}
    assert read(idle) == (Slot(id=3, busy=False, context=4096),)


def test_an_idle_slot_tells_what_it_keeps_and_nothing_of_its_last_request() -> None:
    """As a real server answered after a request of 69 tokens in all: the zeros are of no request."""
    idle = {**NOW, "is_processing": False, "n_prompt_tokens": 69, "n_prompt_tokens_processed": 0,
            "n_prompt_tokens_cache": 0, "next_token": [{"n_remain": -1, "n_decoded": 0}]}  # fmt: skip
    assert read(idle) == (Slot(id=0, busy=False, task=135, context=65536, held=69),)


@pytest.mark.parametrize(
    ("older", "found"),
    [
        # 2024: the next token was one object, and -1 stood for no task.
        ({"id": 1, "id_task": -1, "n_ctx": 512, "is_processing": False, "next_token": {"n_decoded": 7}, "prompt": "s"},
         Slot(id=1, busy=False, context=512, decoded=7)),
        ({"id": 1, "task_id": 9, "n_ctx": 512, "state": 1, "prompt": "s", "next_token": {"n_decoded": 7}},
         Slot(id=1, busy=True, task=9, context=512, decoded=7)),
        ({"id": 1, "state": 0}, Slot(id=1, busy=False)),
        ({"id": 1, "state": "idle"}, Slot(id=1, busy=False)),
        ({"id": 1, "is_processing": True, "n_prompt_tokens": 17, "n_prompt_tokens_cache": 12},
         Slot(id=1, busy=True, prompt_tokens=17, cached_tokens=12)),
        ({"id": 1, "is_processing": True, "n_decoded": 4, "next_token": []}, Slot(id=1, busy=True, decoded=4)),
        ({"id": 1, "is_processing": None, "next_token": None, "n_ctx": None}, Slot(id=1, busy=False)),
    ],
)  # fmt: skip
def test_slots_of_other_versions(older: dict[str, Any], found: Slot) -> None:
    assert read(older) == (found,)


def test_nothing_of_a_slot_is_text() -> None:
    for slot in read(NOW, {**NOW, "state": "secret"}):
        assert "secret" not in repr(slot)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no",
        b"{}",
        b'{"error":{"code":501}}',
        b"[1]",
        b'[{"n_ctx":1}]',
        b'[{"id":"x"}]',
        b'[{"id":1.5}]',
        b"\xff",
        b"[" * 9_999,
    ],
)
def test_what_is_no_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(ValueError, match="cannot read the answer of /slots"):
        read_slots(answer)


def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MAX_SLOTS", 2)
    assert len(read(NOW, NOW)) == 2
    with pytest.raises(ValueError, match="3 slots; at most 2 are read"):
        read(NOW, NOW, NOW)
    monkeypatch.setattr(slots, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="at most 10 are read"):
        read(NOW)
