"""Requests in the air: fetches, limits, retries, buffers."""
