"""`mainspring store copy`: everything from one store to another, with the protocol alone.

copy.py       read_contents, copy, and what stands in the way of it
notes.py      the same for API keys and other notes
reading.py    stores read through, page by page
"""

from mainspring.stores.copy.copier import CopyReport, StoreContents, copy, read_contents
from mainspring.stores.copy.reader import PAGE

__all__ = ["PAGE", "CopyReport", "StoreContents", "copy", "read_contents"]
