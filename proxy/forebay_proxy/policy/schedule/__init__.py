"""What to fetch next, and whose turn it is."""
