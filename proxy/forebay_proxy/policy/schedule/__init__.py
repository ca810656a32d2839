"""Decides which segment to fetch next, and for which reader."""
