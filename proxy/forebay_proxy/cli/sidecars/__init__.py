"""Verbs about sidecars: serve, stop, ps, status, config."""
