"""One shard file, and the threads that wait for the disk."""
