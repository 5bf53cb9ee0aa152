"""Text of exact numbers of a server's tokens, for traces that tell only lengths."""
