"""Engines on a Ray cluster: Ray places them, starts them again and carries what they say. Nothing else imports ray."""
