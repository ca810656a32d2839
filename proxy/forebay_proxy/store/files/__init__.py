"""One shard file: its bytes written, read and freed, and the threads that wait for the disk."""
