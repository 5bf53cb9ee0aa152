"""Textual widgets: they show lines that panels have drawn, and nothing else."""
