from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import cpu, cpu_kernel, thread_pool
from kernels.attention import warm_up

pytestmark = pytest.mark.usefixtures("two_threads")
TOLERANCES = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},  # soft caps go through a tanh: 7e-6 was seen
    torch.float16: {"atol": 1e-3, "rtol": 2e-3},
    torch.bfloat16: {"atol": 8e-3, "rtol": 1.6e-2},
}
MIXED = [(1, 1), (37, 1), (16, 16), (45, 7), (70, 70), (5, 0), (300, 90), (130, 2)]
OPTIONS = [{}, {"sliding_window": 1}, {"sliding_window": 33}, {"sliding_window": 150}, {"soft_cap": 3.0}]


def agrees(case):
    expected = case.attend("reference")
    torch.testing.assert_close(case.attend("cpu"), expected, **TOLERANCES[expected.dtype])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_mixed_batch_equals_the_reference(case_of, options, dtype):
    agrees(case_of(MIXED, dtype=dtype, **options))


@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (8, 1), (16, 1)], ids=str)
def test_any_group_size_equals_the_reference(case_of, heads):
    agrees(case_of(MIXED, num_q_heads=heads[0], num_kv_heads=heads[1], dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("head_dim", "block_size", "heads"),
    [(128, 32, (4, 1)), (24, 5, (3, 1)), (7, 1, (2, 2)), (80, 8, (5, 1)), (16, 16, (4, 2))],
)
def test_odd_shapes_equal_the_reference(case_of, head_dim, block_size, heads):
    """Heads that are no whole vectors and blocks that are no whole tiles among them."""
    agrees(case_of(MIXED, head_dim=head_dim, block_size=block_size, num_q_heads=heads[0], num_kv_heads=heads[1]))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("length", [127, 128, 300, 1025])
def test_a_lone_long_sequence_is_split_and_merged(case_of, length, options, monkeypatch):
    monkeypatch.setattr(thread_pool, "threads", lambda: 2)
    monkeypatch.setattr(cpu, "POOL_FLOPS", 0)
    monkeypatch.setattr(cpu, "SPLIT_KEYS", 20)  # short, so that some splits come out empty
    agrees(case_of([(length, 1)], **options))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same(case_of, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        agrees(case_of([*MIXED, (1300, 1)]))
    finally:
        torch.set_num_threads(before)


def test_works_where_torch_has_no_libgomp(case_of, monkeypatch):
    monkeypatch.setattr(thread_pool, "_gomp_parallel", lambda: None)
    assert thread_pool.threads() == 1
    agrees(case_of([*MIXED, (1300, 1)]))


def test_the_pool_runs_large_work_alone(case_of, monkeypatch):
    regions = []

    def region(address, call, count, flags):
        regions.append(count)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(call)

    monkeypatch.setattr(thread_pool, "_gomp_parallel", lambda: region)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    agrees(case_of([(16, 1)]))
    assert regions == []
    agrees(case_of([(2600, 1)]))
    agrees(case_of([(300, 90)]))
    assert regions == [2, 2]


def test_processors_without_bf16_products_widen_instead(case_of, monkeypatch):
    monkeypatch.setattr(cpu, "has_dots", lambda: False)
    agrees(case_of([*MIXED, *[(90, 1)] * 6], shared=5, dtype=torch.bfloat16))


@pytest.mark.parametrize("count", [2, 5, 33])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_sequences_that_share_blocks_equal_the_reference(case_of, count, options, dtype):
    sequences = [(64 + 7 * i, 1 + (i % 3 == 2)) for i in range(count)]
    agrees(case_of(sequences, shared=4, dtype=dtype, **options))


def test_a_row_does_not_depend_on_the_rest_of_the_batch(case_of):
    together = case_of([(600, 1), (500, 40), *[(400, 1)] * 6], shared=20)
    result = together.attend("cpu")
    alone = case_of([(600, 1)])
    alone.query = together.query[:1]
    alone.key_cache, alone.value_cache = together.key_cache, together.value_cache
    alone.metadata = type(alone.metadata).build(
        together.metadata.block_tables[:1].clone(),
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([600], dtype=torch.int32),
        torch.tensor([-1]),
    )
    torch.testing.assert_close(alone.attend("cpu"), result[:1], atol=1e-6, rtol=1e-6)


def test_strided_queries_and_outputs(case_of):
    case = case_of(MIXED)
    expected = case.attend("reference")
    fused = torch.zeros(len(expected), 15, 64)
    fused[:, 3:12] = case.query
    case.query = fused[:, 3:12]
    out = torch.zeros(len(expected), 11, 64)
    case.attend("cpu", out=out[:, 1:10])
    torch.testing.assert_close(out[:, 1:10], expected, **TOLERANCES[torch.float32])
    assert not out[:, 0].any()
    assert not out[:, 10].any()


def test_large_scores_do_not_overflow(case_of):
    case = case_of(MIXED)
    case.scale = 40.0
    # scores near 2,000 are known to 1e-4 in fp32, and weights are their exponentials
    torch.testing.assert_close(case.attend("cpu").double(), case.dense(), atol=2e-3, rtol=2e-3)


def test_an_empty_step_returns_nothing(case_of):
    assert case_of([]).attend("cpu").shape == (0, 9, 64)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_layouts_equal_the_reference(case_of, data):
    lengths = data.draw(st.lists(st.integers(1, 200), min_size=1, max_size=9))
    sequences = [(length, data.draw(st.integers(0, length))) for length in lengths]
    kv_heads, group, head_dim, block_size = data.draw(st.sampled_from([(3, 3, 64, 16), (1, 8, 32, 16), (2, 4, 40, 3)]))
    agrees(
        case_of(
            sequences,
            num_kv_heads=kv_heads,
            num_q_heads=kv_heads * group,
            head_dim=head_dim,
            block_size=block_size,
            dtype=data.draw(st.sampled_from([torch.float32, torch.bfloat16])),
            shared=data.draw(st.integers(0, 8)),
            sliding_window=data.draw(st.none() | st.integers(1, 220)),
            soft_cap=data.draw(st.none() | st.floats(1.0, 50.0)),
            seed=data.draw(st.integers(0, 2**31)),
        )
    )


def test_warm_up_compiles_all_that_serving_needs(case_of, monkeypatch):
    monkeypatch.setattr(thread_pool, "threads", lambda: 2)
    workers = (cpu_kernel.attend_worker, cpu_kernel.merge_worker)
    for worker in workers:
        worker.cache_clear()
    warm_up(9, 3, 64, torch.bfloat16, 16, backend="cpu")
    compiled = [worker.cache_info().misses for worker in workers]
    assert compiled == [2, 1]
    for sequences in ([(5, 1)], [(1300, 1)], [(500, 100)], [(200, 1)] * 20, MIXED):
        case_of(sequences, dtype=torch.bfloat16, shared=6).attend("cpu")
    assert [worker.cache_info().misses for worker in workers] == compiled


def test_a_second_process_loads_what_the_first_compiled(tmp_path):
    script = "import torch; from kernels.attention import warm_up; warm_up(4, 2, 16, torch.float32, 4, backend='cpu')"
    environment = {**os.environ, "PAGED_TOP_CACHE": str(tmp_path), "NUMBA_CACHE_DIR": ""}

    def compiled():
        subprocess.run([sys.executable, "-c", script], check=True, env=environment)
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "numba").rglob("*.nbc")}

    first = compiled()
    assert first
    assert compiled() == first


def test_compiles_anew_where_no_cache_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    script = "import torch; from kernels.attention import warm_up; warm_up(4, 2, 16, torch.float32, 4, backend='cpu')"
    environment = {**os.environ, "PAGED_TOP_CACHE": str(tmp_path / "file"), "NUMBA_CACHE_DIR": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


MEMORY_SHARED_WITH_ANOTHER_THREAD = """
import threading
import torch
from kernels.attention import AttentionMetadata, paged_attention

torch.set_num_threads(1)
query, keys, values = (torch.randn(*shape).bfloat16() for shape in ((40, 6, 64), (64, 2, 16, 64), (64, 2, 16, 64)))
layout = (torch.arange(64)[None], torch.tensor([0, 40]), torch.tensor([1000]))
metadata = AttentionMetadata.build(*(x.int() for x in layout), torch.full((40,), -1))
attend = lambda: paged_attention(query, keys, values, metadata, 0.1, backend="cpu")
expected, done = attend(), threading.Event()

def allocate():
    while not done.is_set():
        [b"x" * size for size in range(8_000, 64_000, 500)]

other = threading.Thread(target=allocate)
other.start()
try:
    assert all(torch.equal(attend(), expected) for _ in range(300))
finally:
    done.set()
    other.join()
"""


def test_its_memory_is_its_own_while_it_works():
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # what one thread frees, another gets at once
    subprocess.run([sys.executable, "-c", MEMORY_SHARED_WITH_ANOTHER_THREAD], check=True, env=environment)
