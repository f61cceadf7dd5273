"""Measurements beside peers and beside the bare driver. Ratios in one run, never thresholds."""
