"""Experiments of several runs: one side against another, and one load after another."""
