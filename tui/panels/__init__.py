"""What is on the screen, panel by panel: pure functions from a frame to lines."""
