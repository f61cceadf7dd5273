"""Values and pure decisions: what jobs, runs and schedules are, and what may become of them.

Nothing here does I/O, and only `clock` reads a clock.
"""
