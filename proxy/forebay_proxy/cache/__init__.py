"""Opens shards for readers, from the disk or from their origins; ``ShardCache`` is the entry point."""
