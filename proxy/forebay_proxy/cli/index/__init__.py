"""``forebay index``: counts the samples of shards."""
