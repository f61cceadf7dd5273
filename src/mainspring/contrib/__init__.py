"""Integrations with web frameworks. Each module is optional, and imports its framework."""
