"""A pytest plugin that makes this processor an older one, with AVX2 alone: its code runs on any that has more."""

from __future__ import annotations

import os

import llvmlite.binding

os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = "haswell", "+avx2,+fma,+f16c"
llvmlite.binding.get_host_cpu_features = lambda: {"avx2": True, "fma": True, "f16c": True}
