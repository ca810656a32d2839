"""Brings segments into the cache: room, fetches, sinks."""
