"""What is here of each shard version, its room on disk, its checksums."""
