"""A cluster of engines on the screen: its states followed, kept, recorded and played, and what can be switched."""
