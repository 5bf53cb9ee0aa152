"""Attention over a paged KV cache: one signature, three backends. Imports nothing of the project."""
