"""Opens shards for readers, from disk and from origins alike; ``ShardCache`` is the door."""
