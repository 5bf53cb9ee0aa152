"""Engines that can go on with each other's KV are told from those that cannot."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.transfer.compatibility import compatibility_of, fingerprint
from engine.transfer.offer import Compatibility


def of(name: str = "tiny", seed: int = 0, **changes: Any) -> Compatibility:
    model = resolve_model(name, seed)
    settings: dict[str, Any] = {"dtype": "float32", "quantize": "none", "block_size": 16, **changes}
    return compatibility_of(name, model.folder, model.config, **settings)


def test_engines_alike_have_one_digest_and_others_have_others() -> None:
    assert of() == of()
    others = [of(dtype="bfloat16"), of(quantize="int8"), of(block_size=32), of(seed=1)]
    assert len({of().digest, *(one.digest for one in others)}) == 5


def test_a_person_is_told_what_differs() -> None:
    told = of().told
    assert told.startswith("tiny, float32, blocks of 16, KV of 2 layers, 2 heads of 16, weights ")
    assert of(quantize="int4").told.startswith("tiny, float32 (int4 weights), blocks of 16, ")
    assert of(seed=1).told != told


def test_the_same_weights_under_another_name_are_the_same(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(resolve_model("tiny").folder, copy)
    assert of(str(copy)).digest == of().digest


def test_other_positions_or_bytes_in_another_order_are_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = resolve_model("tiny")
    scaled = dataclasses.replace(model.config, rope=dataclasses.replace(model.config.rope, kind="linear", factor=2.0))
    layout: tuple[Any, ...] = ("float32", "none", 16)
    digests = {compatibility_of("tiny", model.folder, config, *layout).digest for config in (model.config, scaled)}
    monkeypatch.setattr(sys, "byteorder", "big")
    assert len({*digests, of().digest}) == 3


def test_a_tensor_that_differs_anywhere_is_seen(tmp_path: Path) -> None:
    (source,) = resolve_model("tiny").folder.glob("*.safetensors")
    whole = source.read_bytes()
    path = tmp_path / source.name
    header = 8 + int.from_bytes(whole[:8], "little")
    found = set()
    for place in (None, header, header + 1, header + 1000, (header + len(whole)) // 2, len(whole) - 1):
        data = bytearray(whole)
        if place is not None:
            data[place] ^= 1
        path.write_bytes(data)
        found.add(fingerprint(tmp_path))
    assert len(found) == 6


HEADER = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
OUTSIDE = len(HEADER).to_bytes(8, "little") + HEADER + b"1234"


@pytest.mark.parametrize("data", [b"\xff" * 8 + b"{}", b"\2\0\0\0\0\0\0\0[]", b"\5\0\0\0\0\0\0\0{{{{{", OUTSIDE])
def test_files_that_hold_no_weights_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match="is not a whole safetensors file"):
        fingerprint(tmp_path)
