"""Where shards live: one ``Origin`` per kind of place, which ``registry`` finds by scheme."""
