"""Servers that tell no steps, one or a fleet: asked for their figures, recorded, played, shown for what they are."""
