"""The panels of a cluster: its pools side by side, what moves between them, and what that is good for."""
