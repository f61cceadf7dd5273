"""`mainspring store copy`: copies everything from one store to another.

copier.py    copies jobs, runs and notes, and refuses stores that are in use
reader.py    reads a store page by page, and waits for one that is unavailable
"""

from mainspring.stores.copy.copier import CopyReport, StoreContents, copy, read_contents
from mainspring.stores.copy.reader import PAGE

__all__ = ["PAGE", "CopyReport", "StoreContents", "copy", "read_contents"]
