"""Mainspring: jobs that run on time, once, everywhere."""
