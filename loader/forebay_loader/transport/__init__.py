"""Talking to the sidecar: HTTP, and descriptors over a socket."""
