"""Those who are compared, each in a process of its own (`benchmarks.worker`)."""
