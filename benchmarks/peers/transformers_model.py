"""A model in transformers, as both of its ways to generate take it."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForCausalLM, GenerationConfig, logging

from benchmarks.messages import Settings
from engine.build import choose_device, choose_dtype
from engine.loading.resolve import resolve_model


def load(settings: Settings, **options: Any) -> Any:
    """The model in evaluation mode, which never ends an answer by itself."""
    logging.set_verbosity_error()
    device = choose_device("auto")
    folder = resolve_model(settings.model).folder
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=choose_dtype(settings.dtype, device), **options)
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0)
    model.config.eos_token_id = None
    return model.to(device).eval()
