"""Shard files: writing, reading and freeing their bytes, and the threads that wait for the disk."""
