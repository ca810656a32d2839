"""Shards as files of an fsspec file system, for programs that open by fsspec."""
