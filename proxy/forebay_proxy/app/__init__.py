"""Puts the sidecar together, starts it, ends it, and says how it does."""
