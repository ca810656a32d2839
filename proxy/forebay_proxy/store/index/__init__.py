"""The index database: which segments of which shard version are here."""
