from __future__ import annotations

import pytest
import torch

import kernels.attention as attention
from kernels.attention import AttentionMetadata, choose_backend, paged_attention, warm_up, write_kv
from kernels.fp8 import quantize

CPU = torch.device("cpu")


def test_backend_follows_argument_then_environment_then_device(monkeypatch):
    monkeypatch.delenv("PAGED_ENGINE_ATTENTION", raising=False)
    assert choose_backend(CPU) == "cpu"
    assert choose_backend(torch.device("cuda")) == "triton"
    assert choose_backend(torch.device("meta")) == "reference"
    monkeypatch.setenv("PAGED_ENGINE_ATTENTION", "reference")
    assert choose_backend(CPU) == "reference"
    assert choose_backend(CPU, "triton") == "triton"


def test_an_unknown_backend_is_refused_with_what_is_allowed(monkeypatch):
    monkeypatch.setenv("PAGED_ENGINE_ATTENTION", "fast")
    with pytest.raises(ValueError, match="PAGED_ENGINE_ATTENTION is 'fast'; allowed are reference, cpu, triton"):
        choose_backend(CPU)
    with pytest.raises(ValueError, match="backend is 'gpu'"):
        choose_backend(CPU, "gpu")


def test_falls_back_to_the_reference_where_numba_does_not_load(monkeypatch):
    monkeypatch.delenv("PAGED_ENGINE_ATTENTION", raising=False)
    monkeypatch.setitem(attention.BACKENDS, "cpu", "kernels.no_such_module")
    attention._load.cache_clear()
    attention._loads.cache_clear()
    try:
        assert choose_backend(CPU) == "reference"
    finally:
        attention._load.cache_clear()
        attention._loads.cache_clear()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": torch.zeros(1, 8, 64)}, ValueError, "Hq a multiple of 3"),
        ({"query": torch.zeros(1, 9, 32)}, ValueError, r"query must be \[T, Hq, 64\]"),
        ({"query": torch.zeros(2, 9, 64)}, ValueError, "query has 2 rows, the metadata 1"),
        ({"query": torch.zeros(1, 9, 64).half()}, TypeError, "must share bfloat16, float16 or float32"),
        ({"key_scale": 0.5}, ValueError, "are for float8_e4m3fn caches; with torch.float32 they must be 1"),
        ({"value_scale": float("nan")}, ValueError, "value_scale must be a finite number above 0, got nan"),
        ({"value_cache": torch.zeros(9, 3, 16, 64)}, ValueError, "key_cache and value_cache must both be"),
        ({"sliding_window": 0}, ValueError, "sliding_window must be at least 1"),
        ({"soft_cap": 0.0}, ValueError, "soft_cap must be above 0"),
        ({"out": torch.zeros(1, 9, 32)}, ValueError, "out must be"),
    ],
)
def test_refuses_what_does_not_fit(case_of, change, error, message):
    case = case_of([(20, 1)])
    arguments = {
        "query": case.query,
        "key_cache": case.key_cache,
        "value_cache": case.value_cache,
        "metadata": case.metadata,
        "scale": 1.0,
    }
    with pytest.raises(error, match=message):
        paged_attention(**{**arguments, **change})


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_writes_into_the_given_output(case_of, backend):
    case = case_of([(20, 1), (40, 40)])
    out = torch.full_like(case.query, torch.nan)
    assert case.attend(backend, out=out) is out
    torch.testing.assert_close(out.double(), case.dense(), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("block_size", "head_dim"), [(16, 64), (5, 24), (8, 128)])
def test_write_kv_writes_its_slots_and_nothing_else(backend, dtype, block_size, head_dim):
    slots = torch.tensor([2 * block_size + 1, -1, 0, 4 * block_size - 1, -1, block_size])
    tokens = len(slots)
    metadata = AttentionMetadata.build(
        torch.zeros(1, 4, dtype=torch.int32),
        torch.tensor([0, tokens], dtype=torch.int32),
        torch.tensor([tokens], dtype=torch.int32),
        slots,
    )
    # as the model has them: slices of one fused product
    fused = torch.randn(tokens, 9, head_dim).to(dtype)
    key, value = fused[:, 3:6], fused[:, 6:9]
    key_cache, value_cache = (torch.randn(4, 3, block_size, head_dim).to(dtype) for _ in range(2))
    expected_keys, expected_values = key_cache.clone(), value_cache.clone()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected_keys[slot // block_size, :, slot % block_size] = key[token]
            expected_values[slot // block_size, :, slot % block_size] = value[token]
    write_kv(key, value, key_cache, value_cache, metadata, backend=backend)
    assert torch.equal(key_cache, expected_keys)
    assert torch.equal(value_cache, expected_values)


def test_write_kv_refuses_what_does_not_fit(case_of):
    case = case_of([(20, 1)])
    good = torch.zeros(1, 3, 64)
    with pytest.raises(ValueError, match=r"key and value must be \[1, 3, 64\]"):
        write_kv(good, torch.zeros(2, 3, 64), case.key_cache, case.value_cache, case.metadata)
    with pytest.raises(TypeError, match="must share one dtype"):
        write_kv(good, good.half(), case.key_cache, case.value_cache, case.metadata)


def test_float8_caches_are_for_other_backends_than_the_cpus(case_of):
    case = case_of([(20, 1)])
    case.key_cache, case.value_cache = (quantize(cache, 1.0) for cache in (case.key_cache, case.value_cache))
    new = torch.zeros(1, 3, 64)
    with pytest.raises(TypeError, match="the cpu backend has no float8 caches; the reference and triton backends do"):
        case.attend("cpu")
    with pytest.raises(TypeError, match="the cpu backend has no float8 caches"):
        write_kv(new, new, case.key_cache, case.value_cache, case.metadata, backend="cpu")
    with pytest.raises(ValueError, match="key_scale must be a finite number above 0, got 0"):
        case.attend("reference", key_scale=0)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_warm_up_runs_a_layout(backend):
    warm_up(6, 2, 32, torch.float32, 4, backend=backend)
