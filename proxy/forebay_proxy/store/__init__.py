"""The cache directory on the disk: its lock, recovery after a kill, removal of garbage, and the health of the disk."""
