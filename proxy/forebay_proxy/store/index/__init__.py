"""The index database: which segments of each shard version are stored."""
