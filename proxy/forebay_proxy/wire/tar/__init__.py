"""Tar headers, members and samples, and the form of a sample index."""
