"""`mainspring store copy`: copies everything from one store to another.

copier.py    copies jobs and runs, and refuses stores that are in use
notes.py     copies API keys and other notes
reader.py    reads a store page by page, and waits for one that is unavailable
"""

from mainspring.stores.copy.copier import CopyReport, StoreContents, copy, read_contents
from mainspring.stores.copy.reader import PAGE

__all__ = ["PAGE", "CopyReport", "StoreContents", "copy", "read_contents"]
