"""`memory://`: keeps everything in dicts, for tests and simulation."""

from mainspring.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
