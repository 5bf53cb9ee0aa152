"""Batches are padded with rows that do nothing; what needs Triton runs interpreted, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.cuda_graphs import BATCH_SIZES, choose_size, pad, takes
from engine.plan import FixedRequest, PlannedRow
from engine.runner import flatten
from engine.sampling_params import SamplingParams


def planned(start, count, table, kind="decode"):
    request = FixedRequest("a", list(range(100, 100 + start + count)), 3, table, SamplingParams(max_tokens=2))
    return PlannedRow(request, kind, start, count, True)


def test_the_smallest_batch_that_holds_the_rows():
    assert [choose_size(rows) for rows in (1, 2, 3, 9, 17, 25, 33, 200, 256)] == [1, 2, 4, 16, 24, 32, 48, 224, 256]
    assert choose_size(257) is None
    assert list(BATCH_SIZES) == sorted(set(BATCH_SIZES))
    for rows in range(9, 257):  # padding costs at most a third of the rows, past the smallest batches
        assert choose_size(rows) <= max(16, rows * 1.5)


def test_only_steps_of_single_tokens_are_taken():
    assert takes([planned(4, 1, [0, 1]), planned(0, 1, [2], "prefill"), planned(2, 1, [3], "held")])
    assert not takes([planned(4, 1, [0, 1]), planned(0, 2, [2], "prefill")])
    assert not takes([planned(0, 1, [2])] * 257)


def test_padding_sees_no_key_and_writes_no_slot():
    rows = [planned(6, 1, [3, 5]), planned(1, 1, [2], "held"), planned(2, 1, [4])]
    tokens, positions, metadata, _ = flatten(rows, 4, torch.device("cpu"))
    batch = pad(tokens, positions, metadata, 8)
    assert batch.token_ids.tolist() == [106, 101, 102, 0, 0, 0, 0, 0]
    assert batch.positions.tolist() == [6, 1, 2, 0, 0, 0, 0, 0]
    assert batch.slots.tolist() == [22, -1, 18, -1, -1, -1, -1, -1]
    assert batch.context_lengths.tolist() == [7, 2, 3, 0, 0, 0, 0, 0]
    assert batch.block_tables.tolist() == [[3, 5], [2, 0], [4, 0]]
    assert [batch.slots.dtype, batch.context_lengths.dtype] == [torch.int64, torch.int32]
    assert pad(tokens, positions, metadata, 3).slots.tolist() == [22, -1, 18]


@pytest.mark.timeout(900)
def test_the_decoder_in_the_interpreter():
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", Path(__file__).with_name("decoder_interpreted.py")],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
