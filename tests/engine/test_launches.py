"""What a decoder launches on a GPU is what is compiled ahead of time.

It runs on tensors without data, for a GPU that is not there; who looks at a value there gets an error, so a step's
forward waits for none.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from engine.loading.config import read_config
from engine.loading.weights import Weights
from engine.model import Decoder, layer_caches
from engine.plan import FixedRequest, PlannedRow
from engine.runner import flatten
from engine.sampling_params import SamplingParams
from tests.engine.test_model import CASES, save_random

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be specialised", allow_module_level=True)

from kernels import aot
from kernels.launch import A100, H200, MI300, recording

META = torch.device("meta")
BLOCK_SIZE = 16
NUM_BLOCKS = 1 << 21  # gigabytes, as on a GPU: kernels for AMD are others for tensors below 2 GB
MIXED, DECODES, CHUNK = [(0, 60), (9, 1)], [(9, 1), (30, 1)], [(0, 20)]


def planned(i: int, start: int, count: int) -> PlannedRow:
    request = FixedRequest(str(i), range(start + count), 3, range(8), SamplingParams(max_tokens=1))
    return PlannedRow(request, "prefill", start, count, True)


@pytest.mark.parametrize("name", ["qwen3", "mistral-sliding"])
@pytest.mark.parametrize("target", [A100, H200, MI300], ids=str)
def test_what_is_launched_is_what_is_compiled(name: str, target, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PAGED_ENGINE_ATTENTION", "triton")
    save_random(CASES[name], tmp_path)
    config = read_config(tmp_path)
    model = Decoder(config, Weights(tmp_path, torch.bfloat16, META), 128)
    shape = aot.Shape(
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        block_size=BLOCK_SIZE,
        window=config.sliding_windows[0],
        qk_norm=config.qk_norm,
    )
    compiled = set(aot.specializations(target, [shape]))
    caches = layer_caches(model.allocate_kv(NUM_BLOCKS, BLOCK_SIZE))
    for step in (MIXED, DECODES, CHUNK):
        rows = [planned(i, start, count) for i, (start, count) in enumerate(step)]
        tokens, positions, metadata, last_rows = flatten(rows, BLOCK_SIZE, META)
        with recording(target) as launches:
            hidden = model.hidden(tokens.to(META), positions.to(META), metadata, caches, last_rows.to(META))
            logits = model.logits(hidden)
        assert logits.shape == (len(step), config.vocab_size)
        assert {aot.specialize(launch, target) for launch in launches} <= compiled
        names = Counter(launch.kernel.fn.__name__ for launch in launches)
        layers, kinds = config.num_layers, {count > 1 for _, count in step}
        assert names["rotate_and_write_kernel"] == names["silu_mul_kernel"] == layers
        assert names["add_norm_kernel"] == 2 * layers + 1
        assert names["prefill_kernel"] == (layers if True in kinds else 0)
        assert names["decode_kernel"] == (layers if False in kinds else 0)
        assert names["write_kernel"] == 0
