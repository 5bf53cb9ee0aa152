"""paged-top: the dashboard of an engine's step stream."""
