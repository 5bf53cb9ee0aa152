"""KV blocks from one engine to another: a request that one has prefilled goes on in another."""
