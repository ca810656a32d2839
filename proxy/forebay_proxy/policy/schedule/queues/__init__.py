"""What waits to be fetched, and in which order it goes."""
