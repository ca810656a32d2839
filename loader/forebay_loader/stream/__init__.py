"""A shard as bytes that survive a restart."""
