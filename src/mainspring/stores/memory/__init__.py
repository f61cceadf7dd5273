"""`memory://`: a dict. For tests and simulation, and the model that other stores are held to."""

from mainspring.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
