"""From the name a person gives to a folder of weights and tokenizer files the engine can read."""
