"""How entries get into a store: one process writes, the others hand over; nobody waits for it."""
