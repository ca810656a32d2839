"""Clips: the frames wanted of each are found, read and decoded, and no others. Needs the extra ``video``."""
