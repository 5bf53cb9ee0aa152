"""One module for each command: `add_parser` for its options, and what runs it, which imports the rest when it runs."""
