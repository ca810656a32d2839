"""``fb.WebLoader``: equal steps on all ranks, resume, batch ladders, and the start of workers."""
