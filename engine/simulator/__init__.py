"""The engine without a model: the real scheduler and pool, driven by a trace on a clock that is only counted."""
