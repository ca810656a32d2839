"""A reader inside a shard: where its bytes come from, chunk by chunk."""
