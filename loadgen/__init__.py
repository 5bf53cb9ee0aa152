"""loadgen: replays traces against an OpenAI-compatible server and tells what a user would feel."""
