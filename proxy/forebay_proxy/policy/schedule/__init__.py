"""Which segment to fetch next, and which reader's turn it is."""
