"""``fb.WebDataset`` and its stages."""
