"""The serving engine: a pure core (requests, blocks, scheduler) with device work and HTTP at its edges."""
