"""Decides without I/O: plans, eviction, and the schedule of fetches."""
