"""Who reads: job, rank, worker, and how many there are."""
