"""Tasks that nobody waits for: prefetch, warm, verify, sample index, disk monitor."""
