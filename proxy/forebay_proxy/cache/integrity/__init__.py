"""Whether the bytes are right: segments as they were stored, whole shards as their origins say."""
