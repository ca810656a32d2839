"""Decides, and does nothing: plans, eviction, schedule."""
