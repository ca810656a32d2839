"""One shard's URL in its spellings, and patterns of many."""
