"""The documents of the HTTP API: one definition for each, with its descriptions."""
