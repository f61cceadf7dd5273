"""The version of Mainspring, for every layer. pyproject.toml has the same."""

__version__ = "0.1.0"
