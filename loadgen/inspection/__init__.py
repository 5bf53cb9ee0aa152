"""What a trace holds, told without playing it: times, lengths, sessions, and what its prompts have in common."""
