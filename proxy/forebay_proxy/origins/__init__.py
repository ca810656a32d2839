"""Where shards live: one ``Origin`` per kind of place, found by scheme."""
