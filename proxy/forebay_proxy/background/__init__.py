"""Tasks that nobody waits for: taking plans in, prefetch, warm, verify, sample index, disk monitor."""
