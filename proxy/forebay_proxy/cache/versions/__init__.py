"""Finds the version that a shard's name means now: openings, comparisons with the origin, refusals."""
