"""Opens shards for readers, from disk and from origins alike."""
