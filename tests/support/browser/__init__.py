"""A real browser for tests: fetched by `chromium.py`, driven by `page.py`."""
