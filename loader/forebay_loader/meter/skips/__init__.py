"""What handlers pass over: counted, listed, bounded."""
