"""The pool is torch's own, whatever else is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import thread_pool

TORCH = Path("/envs/torch/lib/site-packages/torch")  # an environment that is itself called so
OWN = f"{TORCH}/lib/libgomp.so.1"
BESIDE = f"{TORCH}.libs/libgomp-1.so"
OTHERS = [f"{TORCH.parent}/{name}.libs/libgomp-2.so" for name in ("torchvision", "scikit_learn")]


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ([OWN, *OTHERS], OWN),
        ([BESIDE, *OTHERS], BESIDE),
        (["/usr/lib/libgomp.so.1"], "/usr/lib/libgomp.so.1"),
        (OTHERS, None),
        ([], None),
    ],
)
def test_torchs_own_library_is_found(paths: list[str], found: str | None) -> None:
    assert thread_pool._own_of_torch(paths, TORCH) == found
