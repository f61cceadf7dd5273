"""`mainspring store copy`: everything from one store to another, with the protocol alone.

copy.py       look, copy, and what stands in the way of it
notes.py      the same for API keys and other notes
reading.py    stores read through, page by page
"""

from mainspring.copying.copy import Copied, Look, copy, look
from mainspring.copying.reading import PAGE

__all__ = ["PAGE", "Copied", "Look", "copy", "look"]
