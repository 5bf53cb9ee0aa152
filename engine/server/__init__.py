"""The HTTP side: OpenAI's API, Prometheus and the step stream, over an engine in another process."""
