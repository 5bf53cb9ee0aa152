"""Traces of load: one model of them, and a reader and a writer for each format that people have."""
