"""The plans that readers announced, and when a shard is used next."""
