"""How segments come into the cache: room, fetches, sinks."""
