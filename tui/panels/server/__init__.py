"""The panels of a server that tells no steps: the same places and keys, and each says what its source cannot tell."""
