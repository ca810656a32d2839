"""Descriptors of complete shards over a unix socket."""
