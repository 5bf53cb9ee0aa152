"""KV arithmetic: what a model, a memory and a traffic's lengths come to in blocks and requests, without loading it."""
