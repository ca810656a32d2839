"""``fb.WebLoader``: equal steps over ranks, and workers."""
