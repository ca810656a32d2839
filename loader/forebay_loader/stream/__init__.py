"""A shard as a stream of bytes that survives a restart of the sidecar."""
