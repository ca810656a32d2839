"""How many samples make a batch: budgets of bytes, frames or tokens with buckets of length, padding, and the ladder of batch sizes."""
