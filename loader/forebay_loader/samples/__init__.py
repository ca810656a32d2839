"""From tar to samples; the sample index and random access."""
