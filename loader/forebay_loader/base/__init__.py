"""Errors, time limits, counters, notices."""
