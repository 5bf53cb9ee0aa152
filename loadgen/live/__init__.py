"""What a run shows of itself while it goes on."""
