"""Speed, measured beside peers in the same run."""
