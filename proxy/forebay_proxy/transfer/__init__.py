"""Requests in the air: single flight, limits, retries, buffers."""
