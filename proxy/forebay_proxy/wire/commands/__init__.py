"""Which shard a ``pipe:`` command fetches."""
